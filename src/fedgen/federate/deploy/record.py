"""What `init` records of a federation for later: the server's address, and the versions that it was made with."""

import importlib.metadata
import platform
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from fedgen.errors import FedgenError
from fedgen.federate.schema import read_settings
from fedgen.version import __version__

DEPLOYMENT = "deployment.toml"  # in the server's folder, and in each site's folder `federation`


class Deployment(BaseModel):
    """How sites reach the server, and what the server runs; `add-site` and `doctor` read it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field(description="the name or address by which sites reach the server")
    port: Annotated[int, Field(ge=1, le=65535, strict=True)] = Field(description="the port that sites connect to")
    fedgen: str = Field(default="", description="the version of FedGen at the server; sites need the same")
    flwr: str = Field(default="", description="the version of Flower at the server; sites need the same")
    python: str = Field(default="", description="the version of Python at the server")

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"{bracketed(self.host)}:{self.port}"


def new_deployment(host: str, port: int) -> Deployment:
    """The record of a federation that is set up with what is installed here."""
    return Deployment(host=host, port=port, **installed())


def installed() -> dict[str, str]:
    """The versions that are installed here."""
    return {"fedgen": __version__, "flwr": importlib.metadata.version("flwr"), "python": platform.python_version()}


def read_deployment(folder: Path) -> Deployment:
    """The record in a folder."""
    path = folder / DEPLOYMENT
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise FedgenError(
            f"{path} is missing: write into it how sites reach the server, as two lines such as"
            ' host = "fed.example.org" and port = 8000'
        ) from None
    except OSError as error:
        raise FedgenError(f"{path} cannot be read: {error.strerror}") from error
    return read_settings(path, Deployment)


def bracketed(host: str) -> str:
    """A host as it stands before a port: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host
