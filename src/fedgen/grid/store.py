"""The cells of a grid in a folder: `cells/ID.json`, each the results of one configuration, never computed twice."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedgen.config import BEFORE, RunConfig, changes
from fedgen.data.dataset import Dataset
from fedgen.errors import FedgenError
from fedgen.files import read_json, write_whole
from fedgen.grid.unfinished import Unfinished
from fedgen.registry import file_name
from fedgen.version import __version__

FORMAT = 1
CURVES = {"curve": "headline", "curve_seen_labels": "accuracy_seen_labels"}  # kept of a run, and of which metric
# Settings that do not change a cell's result: names, paths, and which of its scores is shown.
NOT_IN_IDENTITY = {"preset", "score", "data_dir", "user_file", "partition_file"}
_PATHS = ("data_dir", "user_file", "partition_file")

Cell = dict[str, Any]


def identity(config: RunConfig) -> str:
    """The name of a cell, equal for equal computations, in whichever experiment.

    It is made of what differs from the defaults, so that a new option does not rename what was computed before: without
    a bound on updates, as long as there was none.
    """
    kept = {key: value for key, value in changes(config).items() if key not in {*NOT_IN_IDENTITY, *BEFORE}}
    if config.max_update:  # without which max_against does nothing
        kept |= {key: getattr(config, key) for key in BEFORE if getattr(config, key)}
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]
    return f"{file_name(config.dataset.rsplit('/', 1)[-1])}-{file_name(config.algorithms[0])}-{digest}"


def cell_name(config: RunConfig, until: int | None) -> str:
    """The name of a cell's file, which for a run that was stopped says when."""
    return identity(config) + (f".round{until}" if until is not None and until < config.rounds else "")


class Store:
    """The finished cells in a folder, and those under way.

    A run that was stopped `until` some round is a cell as well, beside the one of the whole run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cells = folder / "cells"

    def unfinished(self, config: RunConfig) -> Unfinished:
        """The folder of a cell that is under way, or will be."""
        return Unfinished(self.folder / "unfinished" / identity(config), config)

    def cell(self, config: RunConfig, until: int | None = None) -> Cell | None:
        """The finished cell of a configuration, or None."""
        path = self.cells / f"{cell_name(config, until)}.json"
        if not path.exists():
            return None
        cell = read_json(path)
        if cell.get("format") != FORMAT:
            raise FedgenError(
                f"{path} has format {cell.get('format')} and this is version {__version__}, which reads {FORMAT};"
                " use another --out, or delete the file to compute it again"
            )
        lacking = {"id", "version", "device", "data", "config", "rounds", "results"} - cell.keys()
        if lacking:
            raise FedgenError(f"{path} lacks {', '.join(sorted(lacking))}; delete it to compute it again")
        seeds = sorted(row["seed"] for row in cell["results"])
        if seeds != list(config.run_seeds):
            raise FedgenError(
                f"{path} holds seeds {', '.join(map(str, seeds)) or 'none'} and should hold"
                f" {', '.join(map(str, config.run_seeds))}; delete it to compute it again"
            )
        now = flat(config.model_dump(mode="json"))
        for setting, then in flat(cell["config"]).items():
            if setting not in NOT_IN_IDENTITY and now.get(setting) != then:
                raise FedgenError(
                    f"{path} was computed with {setting} = {then}, which is {now.get(setting)} in this version;"
                    " use another --out, or delete the file to compute it again"
                )
        return cell

    def keep(self, config: RunConfig, summary: Mapping[str, Any], dataset: Dataset, until: int | None = None) -> Cell:
        """Write a finished cell."""
        rounds: list[int] = max(([r for r, _ in row["curve"]] for row in summary["results"]), key=len)
        results = [
            {**row, **{key: [round(value, 2) for _, value in row[key]] for key in CURVES}} for row in summary["results"]
        ]
        cell = {
            "format": FORMAT,
            "id": identity(config),
            "version": summary["version"],
            "device": summary["device"],
            "data": described(dataset),
            "config": {**summary["config"], **dict.fromkeys(_PATHS, "")},
            "rounds": rounds,
            "results": rounded(results),
        }
        path = self.cells / f"{cell_name(config, until)}.json"
        write_whole(path, (json.dumps(cell, allow_nan=False) + "\n").encode())
        return cell


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a configuration by name, options with their section's name before."""
    options = {f"{name}.{key}": value for name, of in config["options"].items() for key, value in of.items()}
    return {key: value for key, value in config.items() if key != "options"} | options


def described(dataset: Dataset) -> dict[str, Any]:
    """How large a dataset is, which tells an official split from another."""
    return {"train": len(dataset.y_train), "test": len(dataset.y_test), "classes": dataset.classes}


def rounded(value: Any, digits: int = 4) -> Any:
    """Floats with so many decimals, also within lists and objects: enough for every table, and small files."""
    if isinstance(value, dict):
        return {key: rounded(one, digits) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one, digits) for one in value]
    return round(value, digits) if isinstance(value, float) else value
