from dataclasses import replace

import numpy as np
import pytest

from fedgen.data.dataset import from_arrays
from fedgen.data.federated import divide, gather, with_skew
from fedgen.data.partition import PARTITIONERS
from fedgen.errors import FedgenError

RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (400, 4, 4, 1)).astype(np.uint8)
DATA = from_arrays(X, np.arange(400) % 4, X[:40], np.arange(40) % 4, user_train=np.arange(400) // 10)
HALF = {"train_fraction": 0.5, "class_limit": False, "validation": 20}


def divided(name, seed=0, data=DATA, users=5, **options):
    scheme = PARTITIONERS[name]
    return with_skew(data, divide(data, scheme, users, seed, **HALF, **options), scheme, options)


def rows_of(division, user):
    return division.index[division.offset[user] : division.offset[user] + division.size[user]]


@pytest.mark.parametrize("name", sorted(set(PARTITIONERS) - {"feature-noise"}))
def test_users_proxy_and_validation_are_disjoint(name):
    division = divided(name)
    held, proxy, validation = set(division.index), set(division.proxy), set(division.validation)
    assert not held & proxy
    assert not held & validation
    assert not proxy & validation
    assert len(held) == len(division.index)
    assert len(held | proxy | validation) == 400
    assert len(validation) == 20
    for user in range(5):
        found = np.bincount(DATA.y_train[rows_of(division, user)], minlength=4)
        assert found.tolist() == division.labels[user].tolist()


def test_the_proxy_can_be_limited():
    assert len(divide(DATA, PARTITIONERS["iid"], 5, 0, proxy_limit=30, **HALF).proxy) == 30


def test_natural_needs_users():
    with pytest.raises(FedgenError, match=r"has no natural users; .*--user-file FILE .*--user COLUMN"):
        divided("natural", data=replace(DATA, user_train=None))


def test_natural_groups_as_the_dataset_says():
    division = divided("natural", data=replace(DATA, group=4))
    owners = [set(DATA.user_train[rows_of(division, user)]) for user in range(5)]
    assert [len(own) for own in owners] == [4] * 5
    assert len(set.union(*owners)) == 20


def test_natural_seeds_have_proxies_of_one_length():
    uneven = replace(DATA, user_train=np.sort(RNG.integers(0, 40, 400)))
    divisions = [divided("natural", seed, uneven) for seed in range(4)]
    assert len({len(division.index) for division in divisions}) > 1
    assert len({len(division.proxy) for division in divisions}) == 1


def test_data_in_memory_are_not_copied():
    x, y, divisions = gather(DATA, {(0, 0): divided("iid")})
    assert x is DATA.x_train
    assert y is DATA.y_train
    assert list(divisions) == [(0, 0)]


def mapped(tmp_path):
    np.save(tmp_path / "x.npy", X)
    return replace(DATA, x_train=np.load(tmp_path / "x.npy", mmap_mode="r"))


def test_of_memory_mapped_data_only_the_rows_in_use_are_read(tmp_path):
    data = mapped(tmp_path)
    scheme = PARTITIONERS["natural"]
    half = {**HALF, "train_fraction": 1.0}
    before = {(0, seed): divide(data, scheme, 3, seed, proxy_limit=10, **half) for seed in (0, 1)}
    x, y, after = gather(data, before)
    assert not isinstance(x, np.memmap)
    assert len(x) == len(y) < 200
    for seed in before:
        for part in ("index", "proxy", "validation"):
            old, new = getattr(before[seed], part), getattr(after[seed], part)
            assert np.array_equal(x[new], X[old])
            assert np.array_equal(y[new], DATA.y_train[old])


def test_noise_is_each_users_own_and_of_the_stated_size():
    grey = from_arrays(
        np.full((3000, 10, 10), 128, np.uint8),
        np.arange(3000) % 2,
        X[:40, :, :, 0].repeat(3, 1)[:, :10, :1].repeat(10, 2),
        np.arange(40) % 2,
    )
    seeds = {(0, seed): divided("feature-noise", seed, grey, users=4, noise=0.2) for seed in (0, 1)}
    x, y, after = gather(grey, seeds)
    assert x.dtype == np.uint8
    for seed in seeds:
        for user, level in enumerate((0.05, 0.1, 0.15, 0.2)):
            own = x[rows_of(after[seed], user)].astype(float) / 255
            # rounding adds 1/12 of a grey level squared; 0.2 is cut off at 2.5 standard deviations
            assert own.std() == pytest.approx(level, rel=0.05)
            assert np.array_equal(y[rows_of(after[seed], user)], grey.y_train[rows_of(seeds[seed], user)])
        assert np.all(x[after[seed].proxy] == 128)
