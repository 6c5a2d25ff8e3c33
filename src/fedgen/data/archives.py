"""Zip files, checked for path traversal: no member may point outside its folder."""

import zipfile
from pathlib import Path, PurePosixPath

from fedgen.errors import FedgenError


def open_zip(path: Path) -> zipfile.ZipFile:
    """A zip file whose members all stay within its folder."""
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise FedgenError(f"{path} cannot be read as a zip file: {error}") from error
    for name in archive.namelist():
        if not stays_inside(name):
            archive.close()
            raise FedgenError(f"{path} has the member '{name}', which climbs out of its folder; it is not opened")
    return archive


def stays_inside(name: str) -> bool:
    """Whether a member's name is a path within the archive's folder, on every system."""
    path = PurePosixPath(name.replace("\\", "/"))
    return not path.is_absolute() and ".." not in path.parts and ":" not in path.parts[0] if path.parts else False
