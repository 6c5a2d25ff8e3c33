"""The module fedgen/settings.py, made from the declarations: `python -m fedgen.cli.typed_settings`."""

import textwrap
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from fedgen.cli.settings import SETTINGS, choices, scalar

PLACE = Path(__file__).parents[1] / "settings.py"
_GIVEN = ("algorithms", "model")  # arguments of `fedgen.simulate` by themselves
_HEAD = '''"""The settings of `fedgen.simulate`, with their types, for editors and type checkers.

Made from the declarations (`python -m fedgen.cli.typed_settings`), which have their defaults; a test compares them.
"""

from collections.abc import Sequence
from typing import Literal, TypedDict


class Settings(TypedDict, total=False):
    """All that decides the result of a run."""
'''


def typed_settings() -> str:
    """The whole module."""
    parts = [_HEAD]
    for name, field in SETTINGS.items():
        if name not in _GIVEN:
            words = f'"""{(field.description or "").strip()}."""'
            text = textwrap.fill(words, 116, break_long_words=False, break_on_hyphens=False)
            parts.append(textwrap.indent(f"{name}: {_type(field.annotation)}\n{text}\n", "    "))
    return "\n".join(parts)


def _type(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return f"Literal[{', '.join(map(_quoted, choices(annotation)))}]"
    if get_origin(annotation) is tuple:
        return f"Sequence[{_type(get_args(annotation)[0])}]"
    return str(scalar(annotation).__name__)


def _quoted(choice: str) -> str:
    return f'"{choice}"'


if __name__ == "__main__":
    PLACE.write_text(typed_settings(), encoding="utf-8")
