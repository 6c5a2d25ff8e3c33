"""The command `fedgen export`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedgen.cli.chosen import AlgorithmOption, BestOption, RunArgument, SeedOption, UserOption

console = Console(highlight=False, markup=False)


def export(
    run: RunArgument,
    to: Annotated[str, typer.Option("--to", metavar="stablehlo|onnx|safetensors|torch", help="The format: a StableHLO program for jax.export and other compilers, an ONNX model (pip install 'fedgen\\[onnx]'), the weights alone, or a PyTorch module with its weights.")],
    algorithm: AlgorithmOption = None,
    seed: SeedOption = None,
    user: UserOption = None,
    best: BestOption = False,
    out: Annotated[Path | None, typer.Option(help="The folder to write to. Default: export in the run's folder.")] = None,
) -> None:  # fmt: skip
    """Write a trained model in a format of others, which then need no FedGen to use it.

    RUN is a run's folder (--out of `fedgen run`).
    """
    from fedgen.use.export import EXPORTS
    from fedgen.use.loaded import load

    write = EXPORTS.find(to)
    model = load(run).model(algorithm, seed=seed, user=user, best=best)
    for path in write(model, out or run / "export"):
        console.print(f"{path} ({path.stat().st_size:,} bytes)", soft_wrap=True)
