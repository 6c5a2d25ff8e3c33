"""Files: the user's cache folder, checked reading, and atomic writing."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedgen.errors import FedgenError


def cache_folder() -> Path:
    """The folder for what can be made again: downloads, decoded images, compiled programs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedgen"


def read_text(path: Path, advice: str = "delete it to make it again") -> str:
    """The text of a file that somebody may have damaged."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FedgenError(f"{path} cannot be read: {error}; {advice}") from error


def read_json(path: Path, advice: str = "delete it to make it again") -> dict[str, Any]:
    """A JSON file that holds an object."""
    try:
        content = json.loads(read_text(path, advice))
    except ValueError as error:
        raise FedgenError(f"{path} cannot be read: {error}; {advice}") from error
    if not isinstance(content, dict):
        raise FedgenError(f"{path} holds no JSON object; {advice}")
    return content


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends well, and is removed otherwise."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise FedgenError(
            f"{path} cannot be written: {error.strerror or error}; what was there before is kept"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def check_writable(path: Path) -> None:
    """Raise now the error that `write_whole` would raise at the end of a long computation."""
    if path.is_dir():
        raise FedgenError(f"{path} cannot be written: it is a folder")
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
        temporary.unlink()
    except OSError as error:
        raise FedgenError(f"{path} cannot be written: {error.strerror or error}") from error


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file by new content, or leave it as it was, also when the power fails."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
