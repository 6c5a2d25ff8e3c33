"""Layers of settings, and what is said of wrong ones."""

import tomllib
from pathlib import Path

import pytest

from fedgen.algorithms import ALGORITHMS, options_of
from fedgen.config import layer_of, parse_setting, read_toml, resolve, to_toml
from fedgen.errors import FedgenError
from fedgen.presets import DESCRIPTIONS, PRESETS


def test_defaults_are_the_papers() -> None:
    config = resolve()
    assert (config.users, config.active, config.rounds, config.local_steps, config.batch_size) == (20, 10, 200, 20, 32)
    assert (config.lr, config.train_fraction) == (0.01, 0.5)
    fedgen = config.of("fedgen")
    assert (fedgen["generator_lr"], fedgen["generator_batch"], fedgen["client_batch"]) == (1e-4, 128, 32)
    assert (fedgen["noise_size"], fedgen["hidden"], fedgen["generator_steps"]) == (32, 256, 50)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_resolves_and_survives_a_file(preset: str, tmp_path: Path) -> None:
    config = resolve({"preset": preset, "algorithms": list(ALGORITHMS)})
    (tmp_path / "c.toml").write_text(to_toml(config))
    assert resolve(read_toml(tmp_path / "c.toml")) == config
    assert preset in DESCRIPTIONS


def test_every_option_of_every_algorithm_can_be_set() -> None:
    for name, builder in ALGORITHMS.items():
        for key, parameter in options_of(builder).items():
            config = resolve({"algorithms": [name], f"{name}.{key}": parameter.default})
            assert config.of(name)[key] == parameter.default


def test_later_layers_win_and_a_setting_for_all_replaces_one_for_some() -> None:
    config = resolve({"preset": "tuned", "algorithms": ["fedavg", "fedgen"]}, {"lr": 0.05}, {"fedgen.lr": 0.07})
    assert "lr" not in config.of("fedavg")
    assert config.lr == 0.05
    assert config.of("fedgen")["lr"] == 0.07


@pytest.mark.parametrize("preset", PRESETS)
def test_robust_aggregation_brings_a_bound_on_gradients_unless_one_is_said(preset: str) -> None:
    robust = {"preset": preset, "algorithms": ["fedavg", "fedgen"], "aggregation": "multi-krum"}
    config = resolve(robust)
    assert config.clip_gradient == 1.0
    assert "clip_gradient" not in config.of("fedgen"), "a preset's own is replaced"
    assert resolve(robust, {"clip_gradient": 0.0}).clip_gradient == 0.0
    assert resolve(robust, {"fedgen.clip_gradient": 5.0}).of("fedgen")["clip_gradient"] == 5.0
    assert resolve({**robust, "aggregation": "mean", "preset": "paper"}).clip_gradient == 0.0
    whole = layer_of(tomllib.loads(to_toml(resolve({**robust, "aggregation": "mean"}))), Path("config.toml"))
    assert resolve(whole, {"aggregation": "median"}).clip_gradient == 1.0, "also over a file that has every setting"
    assert resolve(layer_of(tomllib.loads(to_toml(config)), Path("config.toml"))) == config


def test_partition_alpha_is_alpha() -> None:
    assert resolve({"partition.alpha": 3.0}).alpha == 3.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fedgen.beta=1", ("fedgen.beta", 1)),
        ("fedgen.noise=uniform", ("fedgen.noise", "uniform")),
        ("model.channels=[2, 3]", ("model.channels", [2, 3])),
        ("feddistill+.reset=false", ("feddistill+.reset", False)),
    ],
)
def test_settings_of_the_command_line(text: str, expected: tuple) -> None:
    assert parse_setting(text) == expected


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"algorithms": ["fedgn"]}, "unknown algorithm 'fedgn'; did you mean 'fedgen'?"),
        ({"algorithms": []}, "at least one"),
        ({"algorithms": ["fedavg", "fedavg"]}, "given twice"),
        ({"preset": "papr"}, "did you mean 'paper'?"),
        ({"dataset": "mnits"}, "did you mean 'mnist'?"),
        ({"model": "cnm"}, "did you mean 'cnn'?"),
        ({"fedgen.bta": 1}, "unknown option of fedgen 'bta'; did you mean 'beta'?"),
        ({"fedgan.beta": 1}, "did you mean 'fedgen'?"),
        ({"round": 3}, "did you mean 'rounds'?"),
        ({"active": 30}, "30 active users of 20"),
        ({"users": 0}, "users must be greater than or equal to 1, not 0"),
        ({"rounds": -5}, "rounds must be"),
        ({"alpha": 0}, "alpha must be greater than 0"),
        ({"lr": float("nan")}, "lr must be a finite number"),
        ({"lr": "fast"}, "lr must be a valid number"),
        ({"fedgen.lr": float("inf")}, "fedgen.lr must be a finite number"),
        ({"fedprox.mu": -1.0}, "fedprox.mu must be greater than or equal to 0"),
        ({"fedgen.noise": "gauss"}, "must be 'normal' or 'uniform', not 'gauss'"),
        ({"fedgen.generator_batch": 0}, "fedgen.generator_batch must be greater than or equal to 1"),
        ({"fedntd.temperature": 0.0}, "fedntd.temperature must be greater than 0, not 0.0"),
        ({"moon.temperature": 0}, "moon.temperature must be greater than 0"),
        ({"moon.temperature": float("inf")}, "moon.temperature must be a finite number"),
        ({"fedopt.second_moment": 1.0}, "fedopt.second_moment must be less than 1"),
        ({"fedopt.server_momentum": 2.0}, "fedopt.server_momentum must be less than 1"),
        ({"fedopt.server_momentum": -0.1}, "fedopt.server_momentum must be greater than or equal to 0"),
        ({"fedrep.head": 0.0}, "fedrep.head must be greater than 0"),
        ({"fedrep.head": 1.0}, "fedrep.head must be less than 1"),
        ({"fedmoments.memory": 1.5}, "fedmoments.memory must be less than or equal to 1"),
        ({"ccvr.memory": 2}, "ccvr.memory must be less than or equal to 1"),
        ({"share": "some"}, "share must be 'all', 'predictor' or 'extractor'"),
    ],
)
def test_wrong_settings_say_what_would_be_right(layer: dict, message: str) -> None:
    with pytest.raises(FedgenError) as caught:
        resolve(layer)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("rounds = ", "cannot be read"),
        ("[fedgen]\nw = 1", "write [options.fedgen] instead of [fedgen]"),
        ("[options]\nfedgen = 3", "must be a table"),
    ],
)
def test_wrong_files(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(content)
    with pytest.raises(FedgenError, match=r".*") as caught:
        resolve(read_toml(tmp_path / "c.toml"))
    assert message in str(caught.value)
    with pytest.raises(FedgenError, match="cannot be read"):
        read_toml(tmp_path / "absent.toml")


def test_momentum_may_be_0_and_memory_1() -> None:
    config = resolve({"algorithms": ["fedopt", "ccvr"], "fedopt.server_momentum": 0.0, "ccvr.memory": 1.0})
    assert (config.of("fedopt")["server_momentum"], config.of("ccvr")["memory"]) == (0.0, 1.0)


def test_a_setting_without_a_sign_is_explained() -> None:
    with pytest.raises(FedgenError, match="key=value"):
        parse_setting("fedgen.beta")


@pytest.mark.parametrize("text", ["/plain", '/a "b" \\c', "/two\nlines\r\n.", "/\t\x1f\x7f", "/α — 统"])
def test_any_text_survives_a_file(text: str, tmp_path: Path) -> None:
    config = resolve({"user_file": text})
    (tmp_path / "c.toml").write_text(to_toml(config), encoding="utf-8", newline="")
    assert resolve(read_toml(tmp_path / "c.toml")) == config
    assert config.user_file == text
