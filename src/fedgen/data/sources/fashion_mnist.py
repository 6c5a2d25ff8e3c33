"""Fashion-MNIST (Xiao, Rasul and Vollgraf 2017; MIT): clothes, in MNIST's format."""

from pathlib import Path

from fedgen.data.dataset import Dataset
from fedgen.data.download import Offer, Remote
from fedgen.data.sources.mnist import ten_classes

_PLACE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
OFFER = Offer(
    "https://github.com/zalandoresearch/fashion-mnist",
    [Remote(f"{_PLACE}/{name}", name, md5) for name, md5 in _MD5.items()],
)


def fashion_mnist(folder: Path) -> Dataset:
    """Clothes in 10 classes, 60,000 for training and 10,000 for testing, 28x28 grey."""
    return ten_classes(folder, "fashion-mnist", _CLASSES)
