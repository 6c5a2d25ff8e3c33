"""Where datasets come from: one small file for each source."""

from collections.abc import Callable

from fedgen.data.dataset import Dataset
from fedgen.data.sources.mnist import mnist

# name -> loader; the first docstring line is what `fedgen list` shows
DATASETS: dict[str, Callable[[], Dataset]] = {"mnist": mnist}
