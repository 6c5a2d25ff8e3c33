"""What the tests of models share."""

from collections.abc import Iterator
from functools import partial

import jax
import pytest

from fedgen.models import dispatch


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The layers as on a GPU: by kernels, which are interpreted where there is no GPU to compile them for."""
    from fedgen.models.nvidia import layers

    monkeypatch.setattr(dispatch, "kernels_run_here", lambda: True)
    if jax.default_backend() != "gpu":
        monkeypatch.setattr(layers, "stack", partial(layers.stack, interpret=True))
        monkeypatch.setattr(layers, "product", partial(layers.product, interpret=True))
        monkeypatch.setattr(layers, "convolve", partial(layers.convolve, interpret=True))
        gradients = partial(layers.gradients_of_convolution, interpret=True)
        monkeypatch.setattr(layers, "gradients_of_convolution", gradients)
    with jax.default_matmul_precision("highest"):  # as all programs have it; it is the CPU's only one
        yield
