"""The reference of the command: every command with its arguments and options, from the declarations in the code."""

from collections.abc import Iterable

import click
import typer

from fedgen.cli.main import app


def page() -> str:
    """All commands as Markdown, in the order of `fedgen --help`."""
    return "\n".join(_commands(typer.main.get_command(app), "fedgen"))


def _commands(command: click.Command, name: str) -> Iterable[str]:
    if isinstance(command, click.Group):
        for part in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), part)
            if found is not None and not found.hidden:
                yield from _commands(found, f"{name} {part}")
        return
    context = click.Context(command, info_name=name)
    yield f"## {name}\n"
    yield f"```text\n{_usage(command, name)}\n```\n"
    yield " ".join((command.help or "").split("\n\n")[0].split()) + "\n"
    for more in (command.help or "").split("\n\n")[1:]:
        yield " ".join(more.split()) + "\n"
    panels: dict[str, list[click.Parameter]] = {}
    for parameter in command.get_params(context):
        if not getattr(parameter, "hidden", False) and parameter.name != "help":
            panels.setdefault(getattr(parameter, "rich_help_panel", None) or "", []).append(parameter)
    for panel, parameters in panels.items():
        if panel:
            yield f"### {panel} {{ #{name.replace(' ', '-')}-{panel.lower().replace(' ', '-')} }}\n"
        yield "| option | values | default | what it is |\n|---|---|---|---|"
        for parameter in parameters:
            yield _row(parameter, context)
        yield ""


def _usage(command: click.Command, name: str) -> str:
    return " ".join([name, *command.collect_usage_pieces(click.Context(command, info_name=name))])


def _row(parameter: click.Parameter, context: click.Context) -> str:
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    if isinstance(parameter, click.Argument):
        names = f"`{parameter.make_metavar(context)}`"
    values = "" if getattr(parameter, "is_flag", False) else parameter.make_metavar(context)
    words = (getattr(parameter, "help", "") or "").replace("\\[", "[")
    words, _, default = words.partition(" Default: ")  # of settings, whose default may depend on others
    default = default.removesuffix(".") or _default(parameter, context)
    if variable := getattr(parameter, "envvar", None):
        words += f" Environment variable: {variable}."
    cells = (names, values.strip("<>[]").replace("|", ", "), default, words)
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"


def _default(parameter: click.Parameter, context: click.Context) -> str:
    shown = getattr(parameter, "show_default", None)
    if isinstance(shown, str):
        return shown
    if parameter.required:
        return "needed"
    value = parameter.get_default(context)
    if value is None or value == () or value == []:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"`{' '.join(map(str, value)) if isinstance(value, list | tuple) else value}`"
