"""One process at a time writes into a folder: a lock that ends with the process that holds it, however it ends."""

import contextlib
import errno
import json
import os
import socket
import time
from datetime import datetime
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from fedgen.errors import FedgenError

NAME = "run.lock"  # in the folder, while somebody writes there
_PAUSE = 0.1  # seconds between attempts
# Of file systems that have no such locks: a run must be possible there, too.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}


class Lock:
    """The lock of a folder, held until `release` or until nobody in this process refers to it any more."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor, self._path, self._process = descriptor, path, os.getpid()

    def release(self) -> None:
        """Let others write; the file is removed, which only the holder may do."""
        if self._descriptor < 0:
            return
        if os.getpid() == self._process:  # and not in a fork of it
            with contextlib.suppress(OSError):
                self._path.unlink()
        os.close(self._descriptor)
        self._descriptor = -1
        _held.pop((self._process, self._path), None)

    def __del__(self) -> None:
        """Release it."""
        self.release()


# By process (a fork has them, too, and must not take them for its own), which may take its own locks again.
_held: WeakValueDictionary[tuple[int, Path], Lock] = WeakValueDictionary()


def lock(folder: Path, patience: float = 0, name: str = NAME) -> Lock:
    """Take the lock of a folder; where another process holds it after `patience` seconds, the error says which.

    Locks of other names are for those who may write there at the same time.
    """
    path, until = folder.resolve() / name, time.monotonic() + patience
    held = _held.get((os.getpid(), path))
    if held is not None:
        return held
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _take(descriptor)
            if _is_still(path, descriptor):  # not one that its holder removed meanwhile
                break
        except BlockingIOError:
            holder = _holder(descriptor)
            os.close(descriptor)
            if time.monotonic() < until:
                time.sleep(_PAUSE)
                continue
            raise FedgenError(f"{folder} is in use: {holder} writes there; wait for its end, or stop it") from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    about = {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now().isoformat(" ", "seconds")}
    os.ftruncate(descriptor, 0)
    os.write(descriptor, (json.dumps(about) + "\n").encode())
    taken = _held[os.getpid(), path] = Lock(descriptor, path)
    return taken


def _take(descriptor: int) -> None:
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _holder(descriptor: int) -> str:
    """Who wrote the file, in words; it may be about to."""
    try:
        about: dict[str, Any] = json.loads(os.read(descriptor, 4096))
        return f"process {about['pid']} on {about['host']}, since {about['since']},"
    except (ValueError, KeyError, TypeError):
        return "another process"
