"""One value of a TOML file changed, with everything else in it, comments included, left as it is."""

import tomllib
from pathlib import Path
from typing import Any

import tomlkit

from fedgen.errors import FedgenError
from fedgen.files import read_text, write_whole


def read_values(path: Path) -> dict[str, Any]:
    """What is in a file."""
    return _parsed(path, read_text(path, "it is needed"))


def set_values(path: Path, **values: Any) -> None:
    """Set these top-level keys; one that is not in the file is written below the others."""
    text = read_text(path, "it is needed")
    _parsed(path, text)
    document = tomlkit.parse(text)
    for key, value in values.items():
        document[key] = value
    write_whole(path, document.as_string().encode())


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FedgenError(f"{path} cannot be read: {error}") from error
