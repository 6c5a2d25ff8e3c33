"""Fetching a dataset from its official place: checked, atomic, and only when asked to."""

import fnmatch
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from fedgen.data.archives import open_zip, stays_inside
from fedgen.errors import FedgenError
from fedgen.files import replacing

_CHUNK = 1 << 20


class Remote(NamedTuple):
    """A file on the net with its published MD5; of an archive, the members (a pattern) that are kept."""

    url: str
    name: str
    md5: str
    members: str = ""
    expected: int = 0  # how many members the pattern matches in the official archive


class Offer(NamedTuple):
    """Where a dataset is offered: the page to read, the files to download."""

    page: str
    files: Sequence[Remote]


def download(offer: Offer, folder: Path, *, progress: bool = True) -> list[Path]:
    """Fetch the files that are not there yet into a folder; give the paths of all."""
    with _bar(progress) as bar:
        return [path for remote in offer.files for path in _fetch(remote, offer.page, folder, bar)]


def by_hand(offer: Offer, folder: Path) -> str:
    """What to do where the network cannot be used."""
    names = ", ".join(f"{remote.name} (unpacked)" if remote.members else remote.name for remote in offer.files)
    return f"get {names} by hand from {offer.page} into {folder}"


def _fetch(remote: Remote, page: str, folder: Path, bar: Progress) -> list[Path]:
    if remote.members:
        kept = sorted(path for path in folder.glob(remote.members) if path.is_file())
        if len(kept) == remote.expected:
            return kept
    archive = _retrieve(remote, page, folder, bar)
    if not remote.members:
        return [archive]
    paths = [_keep(name, content, folder) for name, content in _members(archive, remote.members)]
    if not paths:
        raise FedgenError(f"{archive} has no member {remote.members}; it is not the archive that {page} offers")
    archive.unlink()
    return paths


def _retrieve(remote: Remote, page: str, folder: Path, bar: Progress) -> Path:
    import pooch  # slow to import, and needed only here
    from requests import RequestException

    pooch.get_logger().setLevel("WARNING")
    where = by_hand(Offer(page, [remote]), folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Path(
            pooch.retrieve(remote.url, f"md5:{remote.md5}", remote.name, folder, progressbar=_Meter(bar, remote.name))
        )
    except RequestException as error:
        raise FedgenError(f"{remote.url} cannot be reached ({type(error).__name__}); {where}") from error
    except ValueError as error:  # what pooch says of a wrong checksum
        raise FedgenError(
            f"what {remote.url} sent is not {remote.name}: its MD5 is not {remote.md5}; try again later, or {where}"
        ) from error
    except OSError as error:
        raise FedgenError(f"{folder / remote.name} cannot be written: {error.strerror or error}") from error


def _members(archive: Path, pattern: str) -> Iterator[tuple[str, IO[bytes]]]:
    """The members of a zip or tar whose file name matches; paths outside of the folder are refused."""
    try:
        if zipfile.is_zipfile(archive):
            with open_zip(archive) as zipped:
                for name in zipped.namelist():
                    if fnmatch.fnmatch(PurePosixPath(name).name, pattern):
                        with zipped.open(name) as content:
                            yield PurePosixPath(name).name, content
            return
        with tarfile.open(archive) as tarred:
            for member in tarred:
                if not stays_inside(member.name):
                    raise FedgenError(f"{archive} has the member '{member.name}', which climbs out of its folder")
                content_ = tarred.extractfile(member) if member.isfile() else None
                if content_ is not None and fnmatch.fnmatch(PurePosixPath(member.name).name, pattern):
                    yield PurePosixPath(member.name).name, content_
    except (zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise FedgenError(f"{archive} cannot be unpacked: {error}") from error


def _keep(name: str, content: IO[bytes], folder: Path) -> Path:
    path = folder / name
    with replacing(path) as temporary, temporary.open("wb") as file:
        while chunk := content.read(_CHUNK):
            file.write(chunk)
    return path


class _Meter:
    """What pooch calls a progress bar, on one of rich."""

    def __init__(self, bar: Progress, name: str) -> None:
        self._bar, self._task = bar, bar.add_task(name, total=None)
        self.total = 0

    def update(self, step: int) -> None:
        """Some bytes have come."""
        self._bar.update(self._task, advance=step, total=self.total or None)

    def reset(self) -> None:
        """Count from 0 again."""
        self._bar.reset(self._task)

    def close(self) -> None:
        """The file is there."""


@contextmanager
def _bar(shown: bool) -> Iterator[Progress]:
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as progress:
        yield progress
