"""Export of the weights alone, as FedGen has them."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from fedgen.core.trees import named
from fedgen.files import write_whole
from fedgen.use.classifier import Classifier


def safetensors(model: Classifier, folder: Path) -> list[Path]:
    """The weights by name, in FedGen's layout, with shape, normalisation and class names in the header."""
    params, statistics = model.network
    tree = {"extractor": params.extractor, "predictor": params.predictor, "statistics": statistics}
    arrays = {dotted(name): np.array(leaf, order="C") for name, leaf in named(tree).items()}
    about = {
        "model": model.config.model,
        "options": model.config.of("model"),
        "sample": model.form.sample,
        "dtype": model.form.dtype,
        "scale": model.form.scale,
        "max_value": model.form.max_value,
        "classes": model.class_names,
    }
    path = folder / f"{model.whose}.safetensors"
    write_whole(path, save(arrays, {"fedgen": json.dumps(about)}))
    return [path]


def dotted(name: str) -> str:
    """A path in a tree as usual in other frameworks: ['extractor']['conv0']['weight'] as extractor.conv0.weight."""
    return name.replace("']['", ".").replace("['", "").replace("']", "").lstrip(".")
