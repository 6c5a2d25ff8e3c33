"""Export by JAX itself: a StableHLO program with the weights in it."""

import sys
from pathlib import Path
from typing import Any

import jax
from jax import export

from fedgen.core.contract import Array
from fedgen.files import write_whole
from fedgen.use.classifier import Classifier

PLATFORMS = ("cpu", "cuda", "tpu")


def stablehlo(model: Classifier, folder: Path) -> list[Path]:
    """A StableHLO program: NAME.stablehlo for `jax.export.deserialize`, NAME.mlir for other compilers.

    It takes any number of samples as the run took them (images as bytes), and gives their logits. Of a network whose
    own code needs their number, it takes one at a time.
    """
    (samples,) = export.symbolic_shape("n")
    try:
        exported = exported_program(model, samples)
    except Exception:  # whatever a network of one's own does with the number; what has another cause is raised again
        exported = exported_program(model, 1)
        say_one_sample()
    path, text = folder / f"{model.whose}.stablehlo", folder / f"{model.whose}.mlir"
    write_whole(path, bytes(exported.serialize()))
    write_whole(text, exported.mlir_module().encode())
    return [path, text]


def exported_program(model: Classifier, samples: Any) -> export.Exported:
    """The program for so many samples, which may be a symbolic number."""
    sample = jax.ShapeDtypeStruct((samples, *model.form.sample), model.form.dtype)
    return export.export(jax.jit(lambda x: raw_logits(model, x)), platforms=PLATFORMS)(sample)


def say_one_sample() -> None:
    """Say that an exported program is not for any number of samples."""
    print("note: this network cannot be exported for any number of samples; it takes one at a time", file=sys.stderr)


def raw_logits(model: Classifier, x: Array) -> Array:
    """The logits of samples as stored, in full precision wherever it is computed."""
    with jax.default_matmul_precision("highest"):
        return model.logits_of(model.task.prepare(x))
