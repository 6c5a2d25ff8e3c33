"""One value of a TOML file changed, with everything else in it, comments included, left as it is."""

import re
import tomllib
from pathlib import Path
from typing import Any

from fedgen import toml
from fedgen.errors import FedgenError
from fedgen.files import read_text, write_whole


def read_values(path: Path) -> dict[str, Any]:
    """What is in a file."""
    return _parsed(path, read_text(path, "it is needed"))


def set_values(path: Path, after: str = "", **values: Any) -> None:
    """Set these top-level keys; one that is not in the file is written below the key `after`."""
    text = read_text(path, "it is needed")
    wanted = {**_parsed(path, text), **values}
    for key, value in values.items():
        line = toml.dumps({key: value}).strip()
        if _entry(key).search(text):
            text = _entry(key).sub(lambda _, line=line: line, text, count=1)  # type: ignore[misc]
        else:
            text = _entry(after).sub(lambda found, line=line: f"{found[0]}\n{line}", text, count=1)  # type: ignore[misc]
    if _parsed(path, text) != wanted:
        lines = "; ".join(" ".join(toml.dumps({key: value}).split()) for key, value in values.items())
        raise FedgenError(f"{path} is not in the form that was expected: write into it yourself: {lines}")
    write_whole(path, text.encode())


def _entry(key: str) -> re.Pattern[str]:
    """A key with its value: a list, perhaps of several lines, or a word."""
    return re.compile(rf"^{re.escape(key)}[ \t]*=[ \t]*(\[[^\]]*\]|[^\s#]+)", re.MULTILINE)


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FedgenError(f"{path} cannot be read: {error}") from error
