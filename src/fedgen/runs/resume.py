"""Whether a checkpoint belongs to the run that is to be resumed."""

import tomllib
from pathlib import Path
from typing import Any

from fedgen.config import BEFORE, RunConfig, layer_of, resolve
from fedgen.errors import FedgenError


def same_config(text: Any, config: RunConfig) -> bool:
    """Whether a checkpoint's configuration, as TOML, is this one.

    Not the texts are compared but what they resolve to: an earlier version may have written another order, and lacks
    the settings that were added since, which then have the values of that time.
    """
    if not isinstance(text, str):
        return False
    # A dataset or model that the caller passed as an object is in no registry: it has no options, and no origin.
    own = {section for section in ("dataset", "model") if not config.of(section) and not _has_origin(config, section)}
    try:
        return resolve(BEFORE, layer_of(tomllib.loads(text), Path("checkpoint")), own=own) == config
    except (FedgenError, tomllib.TOMLDecodeError):
        return False


def _has_origin(config: RunConfig, section: str) -> bool:
    """Whether a dataset or model comes from a plug-in or a `package.module:function`."""
    return f"{section} {getattr(config, section)}" in config.plugins
