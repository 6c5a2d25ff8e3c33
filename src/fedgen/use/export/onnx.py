"""Export to ONNX by jax2onnx (extra `onnx`); what is written is run once by onnxruntime and compared."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr

from fedgen.core.contract import Array
from fedgen.errors import FedgenError
from fedgen.files import write_whole
from fedgen.use.classifier import Classifier
from fedgen.use.export.stablehlo import raw_logits, say_one_sample
from fedgen.use.inputs import some_samples

OPSET = 21  # onnxruntime since 1.20 has it
_SAMPLES = 3  # compared


def onnx(model: Classifier, folder: Path) -> list[Path]:
    """An ONNX model that takes any number of samples as the run took them (images as bytes) and gives their logits.

    Of a network that cannot be converted so, it takes one at a time.
    """
    try:
        import jax2onnx  # noqa: F401 (whether it is there)
    except ModuleNotFoundError:
        raise FedgenError("there is no jax2onnx here: pip install '.[onnx]' in FedGen's folder") from None
    if model.config.precision == "bfloat16":
        raise FedgenError(
            "this run computes in bfloat16, which onnxruntime does not know on CPUs; export it to stablehlo, or train"
            " with --precision float32"
        )
    try:
        content = _converted(model, lambda x: _traced(model, x)(x), "n")
    except Exception:  # whatever it does not know of a network; what has another cause is raised again
        try:
            # Traced ahead: the converter replaces Flax's layers while it traces by itself.
            content = _converted(model, _traced(model, np.empty((1, *model.form.sample), model.form.dtype)), 1)
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise FedgenError(f"jax2onnx cannot convert this network ({reason}); export it to stablehlo") from error
        say_one_sample()
    path = folder / f"{model.whose}.onnx"
    write_whole(path, content)
    return [path]


def _traced(model: Classifier, like: Any) -> Callable[[Array], Array]:
    """The network as JAX traces it for samples like these, without what the logits do not depend on.

    A prediction makes no use of the key that Equinox's layers get, and the converter knows no random numbers.
    """
    traced = jax.make_jaxpr(lambda x: raw_logits(model, x))(jax.ShapeDtypeStruct(like.shape, like.dtype))
    needed, _ = dce_jaxpr(traced.jaxpr, [True], instantiate=True)
    run = jaxpr_as_fun(ClosedJaxpr(needed, traced.consts))
    return lambda x: run(x)[0]


def _converted(model: Classifier, logits: Callable[[Array], Array], samples: Any) -> bytes:
    """The ONNX model for this number of samples, which may be a symbol."""
    from jax2onnx import to_onnx

    with _quiet():
        made = to_onnx(
            logits,
            [jax.ShapeDtypeStruct((samples, *model.form.sample), np.dtype(model.form.dtype))],
            model_name=str(model.whose),
            opset=OPSET,
            input_names=["samples"],
            output_names=["logits"],
        )
    content: bytes = made.SerializeToString()
    _compare(content, model, samples if isinstance(samples, int) else _SAMPLES)
    return content


def _compare(content: bytes, model: Classifier, samples: int) -> None:
    """Refuse a conversion that onnxruntime cannot run, or that does not compute the same."""
    from onnxruntime import InferenceSession

    x = some_samples(model.form, samples)
    (found,) = InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, {"samples": x})
    expected = model.logits(x)
    if not np.allclose(found, expected, rtol=1e-3, atol=1e-3 * float(np.abs(expected).max())):
        raise FedgenError("what it makes gives other logits")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the converter's warnings: shapes of intermediate values that it leaves out."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
