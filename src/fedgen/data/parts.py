"""What is read of one's own data, before its labels are numbered for a dataset or for a site of a federation."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgen.errors import FedgenError

_TEST = 0.2  # of each class, where the data does not say which samples are for testing
_SPLIT_SEED = 0  # the split belongs to the dataset: it is the same in every run

# The words for what models are tested on, the best first.
TEST_WORDS = ("test", "t10k", "val", "valid", "validation")


class Parts(NamedTuple):
    """Samples and labels for training and for testing, as they were found."""

    x_train: NDArray[Any]
    y_train: NDArray[Any]
    x_test: NDArray[Any]
    y_test: NDArray[Any]
    users: NDArray[Any] | None = None  # of the training samples
    class_names: tuple[str, ...] = ()  # what the labels number; without names, they count by themselves
    notes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()  # the columns of a sample, of a table of numbers


def divided(labels: NDArray[Any], place: str, *, whole: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows for training and for testing: of each class 80 and 20 %, always the same ones.

    Of a class with one sample it is for training where that is enough, as at a site; a `whole` dataset needs two.
    """
    rng = np.random.default_rng(_SPLIT_SEED)
    tests = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        if len(rows) == 1:
            if whole:
                raise FedgenError(
                    f"{place}: class '{label}' has one sample; one to train and one to test on are due in each"
                )
            continue
        tests[rows[rng.permutation(len(rows))[: max(1, round(_TEST * len(rows)))]]] = True
    return np.flatnonzero(~tests), np.flatnonzero(tests)
