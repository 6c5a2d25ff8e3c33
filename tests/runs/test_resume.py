"""A checkpoint belongs to a run by what its configuration means, not by how an earlier version wrote it."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedgen import toml
from fedgen.config import BEFORE, RunConfig, resolve, to_toml
from fedgen.runs.resume import same_config

CONFIG = resolve({"algorithms": ["fedgen", "fedavg"], "preset": "tuned", "rounds": 7, "data_dir": 'a "b"\nc'})


def rewritten(config: RunConfig, **changes: Any) -> str:
    """The configuration's text with other settings; None leaves one out."""
    values = {**tomllib.loads(to_toml(config)), **changes}
    return toml.dumps({key: value for key, value in values.items() if value is not None})


def test_the_same_text() -> None:
    assert same_config(to_toml(CONFIG), CONFIG)


@pytest.mark.parametrize("setting", [name for name in RunConfig.model_fields if name != "options"])
def test_a_text_from_before_a_setting_was_added(setting: str) -> None:
    """It has what was computed then, mostly the setting's default; where the run has another value, it is another."""
    then = resolve(BEFORE if setting in BEFORE else {}, {"algorithms": ["fedgen", "fedavg"]})
    assert same_config(rewritten(then, **{setting: None}), then)
    if setting in BEFORE:
        assert not same_config(rewritten(then, **{setting: None}), resolve({"algorithms": ["fedgen", "fedavg"]}))


def test_a_text_from_before_an_option_was_added_or_in_another_order() -> None:
    options = tomllib.loads(to_toml(CONFIG))["options"]
    backwards = {section: dict(reversed(values.items())) for section, values in reversed(options.items())}
    del backwards["fedgen"]["generator_steps"]  # at its default
    values = tomllib.loads(to_toml(CONFIG))
    text = toml.dumps({**dict(reversed(values.items())), "options": backwards})
    assert text != to_toml(CONFIG)
    assert same_config(text, CONFIG)


def test_other_settings_are_another_run() -> None:
    assert not same_config(rewritten(CONFIG, rounds=8), CONFIG)
    assert not same_config(rewritten(CONFIG, rounds=None), CONFIG), "7 is not the default"
    assert not same_config(rewritten(CONFIG, algorithms=["fedgen"]), CONFIG)
    options = tomllib.loads(to_toml(CONFIG))["options"]
    other = {**options, "fedgen": {**options["fedgen"], "generator_steps": 3}}
    assert not same_config(rewritten(CONFIG, options=other), CONFIG)


@pytest.mark.parametrize(
    "text", [None, 7, "rounds = ", 'of_a_later_version = 1\nalgorithms = ["fedgen"]', "options = 1"]
)
def test_what_is_no_configuration_of_this_version(text: Any) -> None:
    assert not same_config(text, CONFIG)


def test_data_and_model_that_the_caller_brought() -> None:
    """Their names are known to nobody else."""
    own = resolve({"dataset": "points", "model": "own", "algorithms": ["fedavg"]}, own={"dataset", "model"})
    assert same_config(to_toml(own), own)
    assert not same_config(rewritten(own, dataset="lines"), own)


def test_data_and_model_by_address_without_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no options, as objects have none, but they have an origin."""
    (tmp_path / "mine_to_resume.py").write_text("def net(sample, classes):\n    ...\n\n\ndef points():\n    ...\n")
    monkeypatch.chdir(tmp_path)
    model = resolve({"model": "mine_to_resume:net", "algorithms": ["fedavg"]})
    dataset = resolve({"dataset": "mine_to_resume:points", "algorithms": ["fedavg"]})
    for config in (model, dataset):
        assert config.plugins
        assert same_config(to_toml(config), config)
        assert not same_config(rewritten(config, rounds=8), config)
    assert not same_config(to_toml(model), dataset)
    with_object = resolve({"dataset": "blobs", "model": "mine_to_resume:net"}, own={"dataset"})
    assert same_config(to_toml(with_object), with_object)
