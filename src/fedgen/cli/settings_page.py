"""The page docs/settings.md, made from the declarations: `python -m fedgen.cli.settings_page > docs/settings.md`."""

import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, get_args, get_origin

from fedgen.algorithms import ALGORITHMS
from fedgen.cli.settings import SETTINGS, default_text, panel_of, shown
from fedgen.config import PER_ALGORITHM, own_options, type_of
from fedgen.core.settings import PANELS
from fedgen.data.partition import PARTITIONERS
from fedgen.data.sources import DATASETS, loader_of
from fedgen.models import MODELS
from fedgen.presets import PRESETS
from fedgen.registry import Registry, summary_of
from fedgen.report.markdown import markdown
from fedgen.report.table import Column, Table, Text

_HEAD = """\
# Settings

All that decides the result of a run, with its defaults. This page is made from the declarations in the code
(`python -m fedgen.cli.settings_page > docs/settings.md`).

A setting is an option of `fedgen run` (`--local-steps 10`; `algorithms` is `--algorithm`), a line of a TOML file
(`local_steps = 10`, for `fedgen run --config`) and an argument of `fedgen.simulate(local_steps=10)`. Options of an
algorithm, the model, the dataset and the partition are given with `--set fedgen.beta=1`, in TOML as `beta = 1` under
`[options.fedgen]`, and in Python as `options={"fedgen.beta": 1}`. What is not given comes from the preset; where
`reference` and `tuned` differ from `paper`, the tables say so (`tuned` also gives each algorithm its own `lr`).

A setting marked • may be different for one algorithm: `--set fedavg.lr=0.1`.
"""

_LEAST = (("ge", "from"), ("gt", "above"), ("lt", "below"), ("le", "to"))  # bounds, as annotated-types names them


def settings_page() -> str:
    """The whole page as Markdown."""
    parts = [_HEAD]
    for panel in PANELS:
        parts += [f"## {panel}\n", _table(("setting", "", "values", "default", "what it is"), _settings(panel))]
    parts.append("## Options of algorithms\n")
    for name, builder in _built_in(ALGORITHMS):
        page = f"algorithms/{name.rstrip('+')}.md"
        parts += [f"### `{name}`\n", f"{summary_of(builder)} More: [{page}]({page}).\n", _options(name, builder)]
    for title, section, registry in (
        ("Options of models", "model", MODELS),
        ("Options of datasets", "dataset", DATASETS),
        ("Options of partitions", "partition", PARTITIONERS),
    ):
        parts.append(f"## {title}\n")
        builders = dict(_built_in(registry))
        if section == "dataset":
            builders["your own (a path)"] = loader_of("./")
        for name, builder in builders.items():
            if own_options(section, builder):
                shown_name = f"`{name}`" if name in registry else name
                parts += [f"### {section} {shown_name}\n", _text(builder), _options(section, builder)]
    return "\n".join(parts)


def _built_in(registry: Registry[Any]) -> Iterable[tuple[str, Callable[..., Any]]]:
    return [(name, registry[name]) for name in registry if not registry.origin(name)]


def _settings(panel: str) -> Iterable[tuple[str, ...]]:
    for name, field in SETTINGS.items():
        if panel_of(name) == panel:
            mark = "•" if name in PER_ALGORITHM else ""
            values = _values(field.annotation, field.metadata)
            yield f"`{name}`", mark, values, default_text(name), field.description or ""


def _options(section: str, builder: Callable[..., Any]) -> str:
    rows = []
    for name, parameter in own_options(section, builder).items():
        key = f"{section}.{name}"
        others = [f"{preset}: {shown(values[key])}" for preset, values in PRESETS.items() if key in values]
        rows.append((f"`{key}`", _values(type_of(parameter)), "; ".join([_value(parameter.default), *others])))
    return _table(("option", "values", "default"), rows) if rows else "It has no options.\n"


def _text(builder: Callable[..., Any]) -> str:
    """A docstring, a paragraph to a line."""
    return "\n\n".join(" ".join(part.split()) for part in (inspect.getdoc(builder) or "").split("\n\n")) + "\n"


def _values(annotation: Any, metadata: Iterable[Any] = (), *, several: bool = False) -> str:
    """A type in words, with its least value."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in parts)
    if type(None) in parts:
        (annotation,) = (part for part in parts if part is not type(None))
        return _values(annotation, metadata)
    if origin is Annotated:
        return _values(parts[0], parts[1:], several=several)
    if origin is not None:
        return f"list of {_values(parts[0], several=True)}"
    word = {bool: "yes or no", int: "whole number", float: "number", str: "text"}.get(annotation, "value")
    bounds = [getattr(one, "metadata", [one]) for one in metadata]  # of pydantic's Field, or of annotated-types
    least = [
        f" {word_} {getattr(one, name)}"
        for ones in bounds
        for one in ones
        for name, word_ in _LEAST
        if hasattr(one, name)
    ]
    return word + "s" * several + "".join(least)


def _value(default: Any) -> str:
    return "" if default in (None, "", ()) or default is inspect.Parameter.empty else shown(default)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    cells = [[Text(cell.replace("|", "\\|")) for cell in row] for row in rows]
    return "\n".join(markdown(Table([Column(title) for title in head], cells))) + "\n"


if __name__ == "__main__":
    sys.stdout.write(settings_page())
