"""Runs on data of every kind: tiny, so that what is tested is that the parts fit together."""

import jax
import numpy as np
import pytest

from data_files import write_celeba, write_class_folders
from fedgen.config import read_toml, resolve, to_toml
from fedgen.data.dataset import from_arrays
from fedgen.errors import FedgenError
from fedgen.models import MODELS
from fedgen.runs.division import divide_all, load_dataset
from fedgen.simulator.run import run
from fedgen.simulator.setup import prepare
from helpers import SMALL, blobs, play, same_bits

QUICK = {key: value for key, value in SMALL.items() if not key.startswith("partition.")} | {"rounds": 1}


@pytest.fixture
def own_file(tmp_path):
    path = tmp_path / "mine.npz"
    x, y = blobs(600)
    x_test, y_test = blobs(200, seed=1)
    np.savez(path, x_train=x, y_train=y, x_test=x_test, y_test=y_test, user_train=np.arange(600) % 37)
    return path


def test_memory_mapped_data_give_the_same_bits(own_file):
    config = resolve(SMALL, {"dataset": str(own_file), "algorithms": ["fedavg"]})
    mapped = load_dataset(config)
    assert isinstance(mapped.x_train, np.memmap)
    loaded = from_arrays(np.array(mapped.x_train), mapped.y_train, np.array(mapped.x_test), mapped.y_test)
    assert same_bits(play(prepare(config, mapped), 2), play(prepare(config, loaded), 2))


def test_natural_users_of_several_seeds_run_as_one_program(own_file):
    config = resolve(QUICK, {"dataset": str(own_file), "algorithms": ["fedavg"], "partition": "natural", "seeds": 2})
    summary = run(prepare(config))
    assert [row["diverged_at"] for row in summary["results"]] == [None, None]


def test_noisy_users_run(own_file):
    config = resolve(
        QUICK, {"dataset": str(own_file), "algorithms": ["fedavg"], "partition": "feature-noise", "seeds": 2}
    )
    setup = prepare(config)
    assert setup.data.x.shape[0] == 2 * 600  # each seed has noise of its own
    assert run(setup)["results"][1]["accuracy"] > 0


@pytest.mark.slow
@pytest.mark.optimised
def test_fedgen_on_celeba_with_the_papers_defaults(tmp_path):
    write_celeba(tmp_path / "celeba")
    config = resolve(
        {"dataset": "celeba", "data_dir": str(tmp_path), "algorithms": ["fedgen"], "users": 3, "active": 2},
        {"rounds": 1, "local_steps": 1, "batch_size": 2, "fedgen.generator_steps": 1, "partition.group": 2},
    )
    assert config.partition == "natural"
    assert config.of("fedgen")["hidden"] == 128
    setup = prepare(config)
    x = np.full((1, 84, 84, 3), 255, np.uint8)
    assert np.asarray(setup.task.prepare(x)).max() == 1
    assert np.asarray(setup.task.prepare(0 * x)).min() == 0  # in [0, 1], unlike MNIST's [-1, 1]
    assert setup.task.classes == 2
    assert run(setup)["results"][0]["accuracy"] is not None


def test_a_folder_of_images_with_matching_test_shares(tmp_path):
    folder = write_class_folders(tmp_path / "pets", {"cat": 40, "dog": 40})
    config = resolve(QUICK, {"dataset": str(folder), "algorithms": ["fedavg"], "score": "matching", "partition": "iid"})
    summary = run(prepare(config))
    assert summary["table"][0]["mean"] == summary["results"][0]["accuracy_matching"]


def test_the_dataset_and_its_options_survive_the_configuration_file(tmp_path, monkeypatch):
    write_class_folders(tmp_path / "pets", {"cat": 4, "dog": 4})
    monkeypatch.chdir(tmp_path)
    config = resolve({"dataset": "./pets", "dataset.size": 16, "dataset.scale": "unit"})
    assert config.dataset == str(tmp_path / "pets")
    assert config.of("dataset") == {"size": 16, "scale": "unit"}
    file = tmp_path / "config.toml"
    file.write_text(to_toml(config))
    assert resolve(read_toml(file)) == config
    assert load_dataset(config).x_train.shape[1:] == (16, 16, 1)


def test_options_of_the_dataset_are_checked():
    with pytest.raises(FedgenError, match="unknown option of dataset 'splitt'; did you mean 'split'"):
        resolve({"dataset": "emnist", "dataset.splitt": "digits"})
    with pytest.raises(FedgenError, match=r"dataset.split must be 'letters', 'balanced', 'byclass' or 'digits'"):
        resolve({"dataset": "emnist", "dataset.split": "bymerge"})
    with pytest.raises(FedgenError, match="unknown partition 'dirichlet-users'; did you mean 'dirichlet-user'"):
        resolve({"partition": "dirichlet-users"})


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 1), (9, 13, 3), (32, 32, 3), (63, 64, 1), (64, 64, 1), (84, 84, 3)])
def test_a_cnn_for_every_image_of_8x8_or_more(shape):
    model = MODELS["cnn"](shape, 5)
    params, statistics = jax.eval_shape(model.init, jax.random.key(0))
    z, _ = jax.eval_shape(
        lambda p, s, x: model.extract(p, s, x, True), params.extractor, statistics, np.zeros((2, *shape))
    )
    assert z.shape == (2, 32)


@pytest.mark.parametrize("shape", [(3,), (7, 7), (2, 3, 4, 5)])
def test_an_mlp_for_anything(shape):
    model = MODELS["mlp"](shape, 5)
    params, _ = jax.eval_shape(model.init, jax.random.key(0))
    z, _ = jax.eval_shape(lambda p, x: model.extract(p, (), x, True), params.extractor, np.zeros((2, *shape)))
    assert z.shape == (2, 32)
    with pytest.raises(FedgenError, match="use 'mlp'"):
        MODELS["cnn"](shape, 5)


def test_small_data_of_ones_own_has_a_fifth_held_out_for_validation() -> None:
    rng = np.random.default_rng(0)
    data = from_arrays(rng.normal(size=(200, 3)), np.arange(200) % 2, rng.normal(size=(20, 3)), np.arange(20) % 2)
    settings = {"dataset": data.name, "users": 4, "active": 2, "partition": "iid", "model": "mlp"}
    config = resolve({**settings, "evaluate_on": "validation"}, own={"dataset"})
    assert config.train_fraction == 0.8
    division = divide_all(config, data)[0]
    assert (len(division.index), len(division.validation)) == (160, 40)
    assert resolve(settings, own={"dataset"}).train_fraction == 1
    for said in (41, 5000):
        with pytest.raises(FedgenError, match="lower train_fraction or validation"):
            divide_all(resolve({**settings, "evaluate_on": "validation", "validation": said}, own={"dataset"}), data)
    whole = {**settings, "evaluate_on": "validation", "train_fraction": 1.0}
    with pytest.raises(FedgenError, match="no training samples are left for validation with train_fraction 1"):
        divide_all(resolve(whole, own={"dataset"}), data)


@pytest.mark.parametrize("partition", ["iid", "natural"])
def test_what_is_held_out_is_counted_by_class_and_the_same_with_every_seed(partition: str) -> None:
    """Of 10 classes of 42 samples users get round(33.6) each, so that 8 of each are left and not 42 // 5."""
    x, y = np.zeros((420, 3)), np.arange(420) % 10
    data = from_arrays(x, y, x[:20], y[:20], user_train=np.arange(420) % 7 * (np.arange(420) % 3 > 0))
    settings = {"dataset": data.name, "users": 4, "active": 2, "partition": partition, "evaluate_on": "validation"}
    divisions = divide_all(resolve({**settings, "seeds": 4, "model": "mlp"}, own={"dataset"}), data)
    assert {len(division.validation) for division in divisions.values()} == {80}
    for division in divisions.values():
        assert not set(division.validation) & set(division.index)
        assert (sum(division.size) == 340) == (partition == "iid")
