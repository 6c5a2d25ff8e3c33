"""Export to ONNX."""

from pathlib import Path

from fedgen.use.classifier import Classifier


def onnx(model: Classifier, folder: Path) -> list[Path]:
    """An ONNX model."""
    raise NotImplementedError
