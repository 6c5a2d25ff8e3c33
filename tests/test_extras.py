"""The optional dependencies of pyproject.toml: those that are to be installed together can be."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

EXTRAS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
PFL_TAKES = "0.5.1"  # of dp-accounting at the latest: pfl 0.6 requires one from 0.4 on and before 0.6


def _required(extra: str) -> dict[str, Requirement]:
    return {found.name: found for found in map(Requirement, EXTRAS[extra])}


def test_the_benchmark_and_privacy_can_be_installed_together() -> None:
    pfl, accountant = _required("bench")["pfl"], _required("privacy")["dp-accounting"]
    assert pfl.specifier.contains("0.6.0")
    assert accountant.specifier.contains(PFL_TAKES)


def test_where_pfl_cannot_be_installed_the_rest_of_the_benchmark_can() -> None:
    """It takes Python up to 3.12."""
    marker = _required("bench")["pfl"].marker
    assert marker is not None
    assert [marker.evaluate({"python_version": version}) for version in ("3.11", "3.12", "3.13")] == [True, True, False]
