"""What the files of a federation may say: `task.toml` for all, `server.toml` at the server, `site.toml` at a site."""

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from fedgen.config import checked
from fedgen.core.settings import NotNegative, Positive, Rate, WholeNumber
from fedgen.data.dataset import Channels, DataForm, Scale
from fedgen.data.labels import checked_names
from fedgen.errors import FedgenError

Schema = TypeVar("Schema", bound=BaseModel)


def _checked_name(name: str) -> str:
    """The name of a site, which is also that of its folder and of its key."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}", name):
        raise PydanticCustomError(
            "name",
            "must be 1 to 40 of the letters A to Z and a to z, digits, '_', '.' and '-', the first a letter or digit",
        )
    return name


Name = Annotated[str, AfterValidator(_checked_name)]

# Settings for dividing one dataset among users. Sites have their own data, so these are left out unless changed.
SIMULATION_ONLY = (
    "seeds", "at_once", "data_dir", "label", "user", "channels", "max_value", "user_file", "partition",
    "partition_file", "alpha", "train_fraction", "class_limit", "proxy_limit", "evaluate_on", "validation",
    "score_users", "patience", "keep_best",
)  # fmt: skip


class TaskSettings(BaseModel):
    """Shape and type of the data, which all sites have in common."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    classes: Annotated[int, Field(ge=2, strict=True, description="how many labels there are: 0 to this minus one")]
    class_names: tuple[str, ...] = Field(
        default=(),
        description="the names of labels 0, 1 ...: of image folders, and of labels that are words or in tables; empty:"
        " their numbers",
    )
    sample: tuple[Positive, ...] = Field(description="the shape of one sample: height, width and channels of an image")
    dtype: Literal["uint8", "uint16", "float32", "int32"] = Field(
        default="uint8", description="how samples are stored; int32: the words of a text, say, which stay whole numbers"
    )
    scale: Scale = Field(
        default="signed", description="bytes and numbers of 16 bits become -1 to 1 (signed) or 0 to 1 (unit)"
    )
    max_value: Annotated[int, Field(ge=0, le=65535, strict=True)] = Field(
        default=0, description="the stored value of white, needed of uint16: 4095 where 12 bits are used (0: 255)"
    )

    @property
    def names(self) -> tuple[str, ...]:
        """What the classes are called."""
        return self.class_names or tuple(map(str, range(self.classes)))

    @property
    def form(self) -> DataForm:
        """How samples are stored and scaled, and what their classes are called."""
        return DataForm(self.names, self.sample, self.dtype, self.scale, self.max_value or 255)

    def check(self) -> None:
        """Refuse names that do not fit the classes, and 16 bits of which nobody says how many are used."""
        checked_names(self.names, self.classes, "class_names")
        if self.dtype == "uint16" and not self.max_value:
            raise FedgenError(
                "samples of uint16 need max_value, as 4095 where 12 bits are used or 65535 for all: all sites must"
                " scale alike, and none sees the others' values"
            )
        if self.dtype in ("float32", "int32") and self.max_value:
            raise FedgenError(f"max_value is for samples of uint8 or uint16; {self.dtype} is taken as it is")


class ServerSettings(BaseModel):
    """The server's settings: its sites, timeouts and limits."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sites: tuple[Name, ...] = Field(description="the names of all sites; the first is number 0")
    removed: tuple[Name, ...] = Field(
        default=(), description="those of them that have left; they stay in the list, so that no other's number changes"
    )
    authenticated: bool = Field(
        default=True, description="identify sites by their registered keys; false only without TLS"
    )
    min_sites: Positive = Field(default=2, description="the fewest valid updates with which a round counts")
    round_timeout: Rate = Field(default=600.0, description="seconds that sites have to reply in a round")
    join_timeout: NotNegative = Field(default=120.0, description="seconds to wait for all sites before the first round")
    wait_timeout: Rate = Field(
        default=600.0, description="seconds to wait while fewer than min_sites are connected; then the run ends"
    )
    attempts: Positive = Field(
        default=3, description="how often a failing site is asked in one round when no other site is left to ask"
    )
    strikes: Positive = Field(default=3, description="messages that no honest site sends, after which one is excluded")
    exclusion: WholeNumber = Field(
        default=20, description="rounds until an excluded site is asked again (0: not in this run)"
    )
    take_back: bool = Field(
        default=True, description="take back a round that breaks the model, and do it again without the outlier"
    )
    max_message: Positive = Field(
        default=100_000_000, description="the most bytes of one message from a site; the gate refuses larger ones"
    )
    max_samples: Positive = Field(
        default=1_000_000, description="as how many samples a site counts at most, however many it has"
    )
    rest: WholeNumber = Field(
        default=5,
        description="rounds until a site that did not reply is asked again, unless it reconnects before; more each time"
        " if it is silent again and again (0: never a rest)",
    )
    poll: Rate = Field(default=0.5, description="seconds between polls for replies")
    keep_rounds: bool = Field(default=False, description="keep the server's state after every round, not only the last")
    test: str = Field(default="", description="an .npz file with arrays x and y, to test the global model on")
    proxy: str = Field(
        default="",
        description="an .npz file with an array x: unlabelled samples, where the algorithm needs them",
    )
    model: str = Field(
        default="", description="module:function that builds another model; empty: the model of config.toml"
    )
    model_options: dict[str, Any] = Field(default={}, description="keyword arguments of the model that `model` names")


class SiteSettings(BaseModel):
    """The settings of one site."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name = Field(description="as in the server's list of sites")
    number: WholeNumber = Field(description="the position in that list, from 0")
    data: str = Field(
        description="an .npz file with x_train and y_train, and x_test and y_test if any; or a format of docs/data.md"
    )
    label: str = Field(default="label", description="the column with the labels, where the data is a table")
    channels: Channels = Field(default="auto", description="where the channels of arrays are: last or first")
    data_options: dict[str, Any] = Field(default={}, description="options of the dataset, such as size")
    sample: tuple[Positive, ...] = Field(
        default=(),
        description="the shape of this site's samples, where it differs from the others'; partial sharing only",
    )
    model: str = Field(
        default="",
        description="another model for this site: a name of `fedgen list`, or module:function; partial sharing only,"
        " and only its extractor is used",
    )
    model_options: dict[str, Any] = Field(default={}, description="keyword arguments of the model that `model` names")
    evaluate: bool = Field(
        default=True, description="report to the server how well the model does on this site's test samples"
    )
    max_message: Positive = Field(default=1_000_000_000, description="the most bytes of one message from the server")


def read_settings(path: Path, schema: type[Schema]) -> Schema:
    """Read and check a TOML file of settings."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FedgenError(f"{path} cannot be read: {error}") from error
    try:
        return checked(schema, values, "")
    except FedgenError as error:
        raise FedgenError(f"{path}: {error}") from None
