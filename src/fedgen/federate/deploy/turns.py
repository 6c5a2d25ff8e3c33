"""Commands that change a federation's folder, one at a time; and what one of them has begun and not finished."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from fedgen.errors import FedgenError
from fedgen.files import write_whole
from fedgen.runs.lock import NAME, lock

_PATIENCE = 10.0  # seconds to wait for another command, which takes one or two
_GATE = "gate.lock"  # in the server's folder, while a gate runs there; commands may change the folder meanwhile


def changing(server: Path) -> contextlib.AbstractContextManager[None]:
    """Hold the lock of the server's folder: what is read within is what will be replaced."""
    return _holding(server, _PATIENCE, NAME)


def only_gate(server: Path) -> contextlib.AbstractContextManager[None]:
    """Be the one gate of the server's folder: what lies in it half sent is nobody else's."""
    return _holding(server, 0.0, _GATE)


@contextlib.contextmanager
def _holding(server: Path, patience: float, name: str) -> Iterator[None]:
    try:
        held = lock(server, patience, name)
    except OSError as error:
        raise FedgenError(f"{server} cannot be written: {error.strerror}") from error
    try:
        yield
    finally:
        held.release()


@contextlib.contextmanager
def staged(staging: Path, final: Path, *changed: Path) -> Iterator[None]:
    """An empty folder `staging`, which becomes `final` when the block ends well: the last thing that a command does.

    Otherwise, also after Ctrl-C, the changed files are as they were before, and `staging` is gone. A process that is
    killed leaves it: then the command, given again, begins anew, and keeps the folder even if it fails once more.
    """
    before = {path: _content(path) for path in changed}
    again = staging.exists()
    try:
        staging.mkdir(parents=True, exist_ok=True)
        for there in staging.iterdir():  # the folder itself stays: it says that something was begun
            shutil.rmtree(there) if there.is_dir() else there.unlink()
        yield
        final.parent.mkdir(parents=True, exist_ok=True)
        staging.rename(final)
    except BaseException as error:
        if staging.exists():  # else it is done
            for path, content in before.items():
                _restore(path, content)
            if not again:
                shutil.rmtree(staging, ignore_errors=True)
        if isinstance(error, OSError):
            raise FedgenError(f"{final} cannot be written: {error.strerror or error}") from error
        raise
    finally:
        for folder in (staging.parent, staging.parent.parent):
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _restore(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink(missing_ok=True)
    elif _content(path) != content:
        write_whole(path, content)
