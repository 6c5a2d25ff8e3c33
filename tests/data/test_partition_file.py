import json
import re

import numpy as np
import pytest

from fedgen.config import resolve
from fedgen.data.partition_file import read_partition
from fedgen.errors import FedgenError
from fedgen.runs.division import divide_all, keep_partition
from helpers import SMALL, small_data


def divided(config, data):
    divisions = divide_all(config, data)
    keep_partition(config, data, divisions)
    return divisions


def config(path, **settings):
    return resolve(SMALL, {"partition_file": str(path), "seeds": 2, **settings}, own={"dataset"})


@pytest.mark.parametrize("name", ["kept.json", "kept.npz"])
@pytest.mark.parametrize("partition", ["dirichlet", "shards"])
def test_what_is_read_is_what_was_written(tmp_path, name, partition):
    settings = {key: value for key, value in SMALL.items() if key != "partition.min_samples"}
    kept = resolve(settings, {"partition": partition, "partition_file": str(tmp_path / name)}, own={"dataset"})
    data = small_data()
    made, read = divided(kept, data), divided(kept, data)
    for part in ("index", "offset", "size", "labels", "proxy", "validation"):
        assert np.array_equal(getattr(made[0], part), getattr(read[0], part))


@pytest.mark.parametrize("name", ["kept.json", "kept.npz"])
def test_other_data_settings_users_and_seeds_are_refused(tmp_path, name):
    path = tmp_path / name
    data = small_data()
    divided(config(path), data)
    other = small_data()
    other.x_train[0, 0, 0, 0] += 1
    for settings, dataset, message in (
        ({}, other, "is of other data ('blobs', by its checksum) than blobs"),
        ({"alpha": 9.0}, data, "was made with alpha=0.5, not 9.0"),
        ({"users": 5}, data, "is for 6 users, not 5"),
        ({"seeds": 3}, data, "has seeds 0, 1, not 2"),
    ):
        with pytest.raises(FedgenError, match=re.escape(message)) as caught:
            divided(config(path, **settings), dataset)
        assert str(path) in str(caught.value)


def damaged(content, **changes):
    return json.dumps({**content, **changes})


def test_damaged_files_are_named(tmp_path):
    path = tmp_path / "kept.json"
    data = small_data()
    divided(config(path), data)
    content = json.loads(path.read_text())
    users = content["seeds"]["0"]
    for text, message in (
        ("{", "cannot be read as a partition file"),
        ("[]", "cannot be read as a partition file"),
        (damaged(content, seeds=3), "cannot be read as a partition file"),
        (damaged(content, format="other"), "is not a partition file"),
        (damaged(content, seeds={"0": [[], *users]}), "one row or more"),
        (damaged(content, seeds={"0": [[600], *users]}), "rows outside 0 to 599"),
        (damaged(content, seeds={"0": [users[1][:1], *users]}), "gives a row twice"),
    ):
        path.write_text(text)
        with pytest.raises(FedgenError, match=message) as caught:
            read_partition(path, data, content["settings"])
        assert str(path) in str(caught.value)


def test_the_ending_decides_the_format(tmp_path):
    with pytest.raises(FedgenError, match=r"must end in .json or .npz"):
        divided(config(tmp_path / "kept.pkl"), small_data())


def test_noise_is_restored_with_the_rows(tmp_path):
    settings = {key: value for key, value in SMALL.items() if key != "partition.min_samples"}
    kept = resolve(
        settings, {"partition": "feature-noise", "partition_file": str(tmp_path / "kept.npz")}, own={"dataset"}
    )
    made, read = divided(kept, small_data()), divided(kept, small_data())
    assert np.array_equal(made[0].noise, read[0].noise)
