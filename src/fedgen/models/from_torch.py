"""PyTorch modules as models."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import jax

from fedgen.core.contract import Array, Model
from fedgen.errors import FedgenError
from fedgen.models.adapt import refuse_others

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor, nn


def from_torch(
    module: "nn.Module | Callable[[], nn.Module]",
    *,
    sample: "Sequence[int] | Tensor | Array | NDArray[Any] | jax.ShapeDtypeStruct",
    predictor: str | None = None,
    channels_last: bool | None = None,
) -> Model:
    """Take an `nn.Module` that gives logits [batch, class] as it is, as a model.

    Images are stored as [height, width, channel] or [height, width] and reach the module as [channel, height, width];
    samples that have the module's own shape pass as they are.

    Args:
        module: The module, which starts with the weights that it has; or a function that makes one, such as its class,
            which is called for each seed, with PyTorch's generator seeded by the run's.
        sample: The shape of one sample as the module takes it, `(3, 32, 32)` for an image, or an example of one, such
            as `torch.zeros(20, dtype=torch.int64)` for twenty tokens, or as an array of NumPy's. A
            `jax.ShapeDtypeStruct` says how FedGen stores it instead, from which the module's shape follows.
        predictor: The name of the submodule that makes logits of the features z [batch, latent]. Default: the last
            `nn.Linear`. Everything before it is the extractor.
        channels_last: Whether images are stored with their channels last, where that cannot be told from shapes.

    Returns:
        A model whose `state_dict` gives the trained tensors by PyTorch's names, as `load_state_dict` takes them.
    """
    if find_spec("torch") is None:
        raise FedgenError("from_torch needs PyTorch: pip install '.[torch]' in FedGen's folder")
    from fedgen.models.torch.build import build

    refuse_others(module, "torch")
    return build(module, sample, predictor, channels_last)
