"""Whether Flower is installed, which federations need and nothing else does."""

from fedgen.errors import FedgenError


def flower_is_installed() -> None:
    """Say how to install Flower where it is not."""
    try:
        import fedgen.federate.wire  # noqa: F401 (only whether it can be imported)
    except ModuleNotFoundError as error:
        raise FedgenError(
            f"a federation needs Flower ({error.name} is not installed): pip install '.[flower]' in FedGen's folder"
        ) from None
