"""Options of the commands, made from the settings that `RunConfig` declares: each with its help, default and panel."""

import functools
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from rich.markup import escape

from fedgen.config import TABLES, RunConfig
from fedgen.core.settings import PANELS
from fedgen.presets import DATASET_PRESETS, OWN_DATA, OWN_DATA_HELD_OUT, PRESETS

_OPTIONS = {"algorithms": "--algorithm"}  # of a setting that is a list, the option names one
_WIDE = 24  # a wider column would leave the help no room
_WORDS = {int: "INTEGER", float: "FLOAT", str: "TEXT"}


def panel_of(name: str) -> str:
    """The group in which a setting is shown."""
    extra = RunConfig.model_fields[name].json_schema_extra
    return str(extra["panel"]) if isinstance(extra, dict) else ""


# By panel, in the order in which both are shown.
SETTINGS = {
    name: field
    for panel in PANELS
    for name, field in RunConfig.model_fields.items()
    if name not in TABLES and panel_of(name) == panel
}
# Settings that a description names, which are options on the command line.
_NAMES = re.compile(rf"\b({'|'.join(name for name in SETTINGS if '_' in name)})\b")


def takes_settings(
    *,
    only: Collection[str] = tuple(SETTINGS),
    without: Collection[str] = (),
    defaults: Mapping[str, Any] | None = None,
    said: Mapping[str, str] | None = None,
    lists: Collection[str] = ("algorithms", "lr_milestones", "augment"),
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each of these settings; its first argument is what was given, as a layer.

    `defaults` are those that the command has differently, and `said` what its help says of a default that depends on
    other options; `lists` are the settings whose option can be given several times.
    """
    chosen = [name for name in SETTINGS if name in only and name not in without]
    defaults = defaults or {}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        options = [_option(name, default_text(name, defaults, said or {}), name in lists) for name in chosen]

        @functools.wraps(command)
        def with_settings(**values: Any) -> None:
            given = {name: values.pop(name) for name in chosen}
            layer = {name: _parsed(name, value) for name, value in given.items() if value not in (None, [])}
            command({**defaults, **layer}, **values)

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *options)]
        del with_settings.__wrapped__  # whose signature is another
        with_settings.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_settings.__annotations__ = {p.name: p.annotation for p in parameters}
        return with_settings

    return decorate


def default_text(name: str, defaults: Mapping[str, Any] | None = None, said: Mapping[str, str] | None = None) -> str:
    """A setting's default in words, with what presets and datasets have instead; "" where there is nothing to say."""
    if said and name in said:
        return said[name]
    if defaults and name in defaults:
        return shown(defaults[name])
    others = {f"--preset {preset}": values[name] for preset, values in PRESETS.items() if name in values}
    others |= {
        f"--dataset {dataset}": values[name]
        for (preset, dataset), values in DATASET_PRESETS.items()
        if preset == "paper" and name in values
    }
    others |= {"your own data": OWN_DATA[name]} if name in OWN_DATA else {}
    if name in OWN_DATA_HELD_OUT:
        others["your own data and --evaluate-on validation"] = OWN_DATA_HELD_OUT[name]
    default = shown(SETTINGS[name].default)
    return "; ".join([default, *(f"with {option}: {shown(value)}" for option, value in others.items())])


def shown(value: Any) -> str:
    """A default as help and docs show it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple | list):
        return " and ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def choices(annotation: Any) -> tuple[str, ...]:
    """The values of a setting (or of the items of one that is a list) that has a fixed set of them."""
    item = scalar(annotation)
    return get_args(item) if get_origin(item) is Literal else ()


def scalar(annotation: Any) -> Any:
    """The type of a setting, or of the items of one that is a list."""
    item = get_args(annotation)[0] if get_origin(annotation) is tuple else annotation
    return get_args(item)[0] if get_origin(item) is Annotated else item


def flag_of(name: str) -> str:
    """The option for a setting."""
    return _OPTIONS.get(name, "--" + name.replace("_", "-"))


def _option(name: str, default: str, several: bool) -> inspect.Parameter:
    """A command's parameter for a setting; texts are checked with all else, so that every mistake is one sentence."""
    field = SETTINGS[name]
    flag = flag_of(name)
    description = _NAMES.sub(lambda match: flag_of(match[0]), field.description or "")
    words = description[:1].upper() + description[1:] + ("; give it several times for several" if several else "")
    text = escape(f"{words}. Default: {default}." if default else f"{words}.")
    about: dict[str, Any] = {"help": text, "rich_help_panel": panel_of(name)}
    kind: Any = list[str] | None if several else str | None
    if field.annotation is bool:
        kind, flag = bool | None, f"{flag}/--no-{flag[2:]}"
    else:
        allowed = "|".join(choices(field.annotation))
        longest = "CHOICE" if len(allowed) > _WIDE else allowed  # the description names them
        about["metavar"] = longest or _WORDS[scalar(field.annotation)]
    annotation = Annotated[kind, typer.Option(flag, **about)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _parsed(name: str, value: Any) -> Any:
    """What was typed, with numbers where the setting has them."""
    annotation = SETTINGS[name].annotation
    if isinstance(value, list):
        return [_number(scalar(annotation), one) for one in value]
    parsed = _number(scalar(annotation), value)
    return [parsed] if get_origin(annotation) is tuple else parsed


def _number(kind: Any, value: Any) -> Any:
    """A text as a number; what is none is left to the check of all settings, which says what would be right."""
    if isinstance(value, str) and kind in (int, float):
        with suppress(ValueError):
            return kind(value)
    return value
