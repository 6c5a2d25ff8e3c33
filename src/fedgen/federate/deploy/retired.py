"""The keys that sites had before: SuperLink never takes one again that it has forgotten, so no site may get it again.

They are beside the keys of the sites, in a folder that the gate does not read.
"""

import hashlib
from pathlib import Path

from fedgen.errors import FedgenError
from fedgen.federate.deploy.keys import as_pem
from fedgen.files import write_whole

_FOLDER = "retired"  # in the folder of keys


def retire(key: Path) -> None:
    """Move a key away from those of the sites, in one step; where it is not there, this was done before."""
    try:
        kept = kept_key(key)
        kept.parent.mkdir(exist_ok=True)
        key.replace(kept)
    except FileNotFoundError:
        return


def replace_key(key: Path, public: bytes) -> None:
    """Write a site's key, and keep the one that it had before.

    That is kept first: a command that is killed between the two has changed nothing, and is given again.
    """
    if key.exists() and (before := key.read_bytes()) != public:
        write_whole(kept_key(key), before)
    write_whole(key, public)


def kept_key(key: Path) -> Path:
    """Where a key is kept when it is replaced or removed."""
    return key.parent / _FOLDER / f"{hashlib.sha256(key.read_bytes()).hexdigest()[:32]}.pub"


def is_retired(pem: bytes, folder: Path) -> bool:
    """Whether a site had this key before; `folder` holds the keys of the sites."""
    for path in sorted((folder / _FOLDER).glob("*.pub")):
        try:
            if as_pem(path.read_bytes(), path) == pem:
                return True
        except FedgenError:  # it was damaged when it was replaced, and nobody's
            continue
    return False
