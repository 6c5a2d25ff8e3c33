"""One predictor for networks of any framework, whose extractors are their own."""

from fedgen.core.contract import Array, Model, Params, Task, Tree
from fedgen.errors import FedgenError
from fedgen.models.check import check_model


def with_predictor_of(common: Task, own: Task) -> Model:
    """The extractor of `own`, and the predictor of `common` in place of its own.

    A predictor that is averaged must have the same arrays everywhere, and each framework names and lays out those of a
    linear layer differently.
    """
    check_model(own)
    if (size := own.latent_size()) != (wanted := common.latent_size()):
        raise FedgenError(
            f"the network gives {size} features, and the predictor that all share takes {wanted}; they must be as many"
        )

    def init(key: Array) -> tuple[Params, Tree]:
        made, statistics = own.model.init(key)
        return Params(made.extractor, common.model.init(key)[0].predictor), statistics

    # Its framework does not know the predictor's names.
    return own.model._replace(init=init, predict=common.model.predict, state_dict=None, framework="")
