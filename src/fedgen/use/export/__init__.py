"""Trained models in the formats of others, each with its normalisation: `EXPORTS` by name."""

from collections.abc import Callable
from pathlib import Path

from fedgen.registry import Registry
from fedgen.use.classifier import Classifier

# name -> function(model, folder) that writes the files and gives their paths; its first docstring line says what
EXPORTS: Registry[Callable[[Classifier, Path], list[Path]]] = Registry(
    "format",
    {
        "stablehlo": "fedgen.use.export.stablehlo:stablehlo",
        "onnx": "fedgen.use.export.onnx:onnx",
        "safetensors": "fedgen.use.export.weights:safetensors",
        "torch": "fedgen.use.export.torch:torch",
    },
    addresses=False,
)
