"""Export to ONNX by jax2onnx (extra `onnx`); what is written is run once by onnxruntime and compared."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedgen.errors import FedgenError
from fedgen.files import write_whole
from fedgen.use.classifier import Classifier
from fedgen.use.export.stablehlo import raw_logits

OPSET = 21  # onnxruntime since 1.20 has it
_SAMPLES = 3  # compared


def onnx(model: Classifier, folder: Path) -> list[Path]:
    """An ONNX model that takes any number of samples as the run took them (images as bytes) and gives their logits."""
    try:
        from jax2onnx import to_onnx
    except ModuleNotFoundError:
        raise FedgenError("there is no jax2onnx here: pip install '.[onnx]' in FedGen's folder") from None
    sample = jax.ShapeDtypeStruct(("n", *model.form.sample), np.dtype(model.form.dtype))
    try:
        with _quiet():
            made = to_onnx(
                lambda x: raw_logits(model, x),
                [sample],
                model_name=str(model.whose),
                opset=OPSET,
                input_names=["samples"],
                output_names=["logits"],
            )
    except Exception as error:  # whatever it does not know of a network of one's own
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FedgenError(f"jax2onnx cannot convert this network ({reason}); export it to stablehlo") from error
    content = made.SerializeToString()
    _compare(content, model)
    path = folder / f"{model.whose}.onnx"
    write_whole(path, content)
    return [path]


def _compare(content: bytes, model: Classifier) -> None:
    """Refuse a conversion that does not compute the same."""
    from onnxruntime import InferenceSession

    x = _some_samples(model)
    (found,) = InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, {"samples": x})
    expected = model.logits(x)
    if not np.allclose(found, expected, rtol=1e-3, atol=1e-3 * float(np.abs(expected).max())):
        raise FedgenError("jax2onnx's conversion of this network gives other logits; export it to stablehlo")


def _some_samples(model: Classifier) -> NDArray[Any]:
    rng = np.random.default_rng(0)
    shape = (_SAMPLES, *model.form.sample)
    if model.form.dtype == "uint8":
        return rng.integers(0, 256, shape).astype(np.uint8)
    return rng.normal(size=shape).astype(np.float32)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the converter's warnings: shapes of intermediate values that it leaves out."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
