"""The benchmark's tables and picture."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from fedgen.report.figures import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Report = Mapping[str, Any]

NAMES = {
    "fedavg": "FedGen project: FedAvg round",
    "fedgen": "FedGen project: FedGen round",
    "evaluation": "FedGen project: evaluation, 10,000 images",
    "pytorch": "PyTorch loop, one thread",
    "pytorch-2-processes": "PyTorch loop, two processes",
    "pytorch-gpu": "PyTorch loop, GPU",
    "flower": "Flower's simulation",
    "pfl": "pfl",
    "roofline": "matrix products at the measured peak",
}


def machine_line(report: Report) -> str:
    """The machine in a line."""
    machine, device = report["machine"], report["machine"]["device"]
    where = f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']:.0f} GB"
    if device["platform"] != "cpu":
        where = f"{device['count']} × {device['kind']} with {machine['kernels']} kernels; {where}"
    versions = {"Python": machine["python"], "JAX": device["jax"], **machine["packages"]}
    software = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"{where}; {software}; load before: {machine['load_before']}"


def tables(report: Report) -> list[Table]:
    """What was measured, for the terminal."""
    shown = []
    if "rounds" in report:
        table = _table("MNIST, 10 clients × 20 steps of 32: one round of training", "", "ms", "range", "/ FedAvg")
        ours = report["rounds"]["fedavg"]["seconds"]
        for name, timing in report["rounds"].items():
            spread = f"{1e3 * timing['low']:.1f} … {1e3 * timing['high']:.1f}"
            table.add_row(NAMES[name], f"{1e3 * timing['seconds']:.1f}", spread, f"{timing['seconds'] / ours:.2f}")
        roofline = report["roofline"]
        peak = f"{roofline['peak_gflops']:.0f} GFLOP/s"
        table.add_row(NAMES["roofline"], f"{1e3 * roofline['seconds']:.1f}", peak, f"{roofline['seconds'] / ours:.2f}")
        shown.append(table)
    if "seeds" in report:
        seeds = report["seeds"]
        table = _table(f"{seeds['at_once']} runs at once", "", "ms", "range")
        for name, timing in seeds["rounds"].items():
            spread = f"{1e3 * timing['low']:.2f} … {1e3 * timing['high']:.2f}"
            table.add_row(f"{name} round", f"{1e3 * timing['seconds']:.2f}", spread)
        if whole := seeds.get("whole_run"):
            note = f"and {whole['seconds_compile']:.1f} s compiling"
            table.add_row(f"fedgen, 3 seeds, {whole['rounds']} rounds", f"{1e3 * whole['seconds']:.0f}", note)
        shown.append(table)
    if "resnet" in report:
        found = report["resnet"]
        title = f"A residual network of {found['parameters'] / 1e6:.1f} million parameters, 32×32×3, batches of 32"
        table = _table(title, "", "s", "ms per client and step")
        round_, step = found["round"]["seconds"], 1e3 * found["seconds_per_client_step"]
        table.add_row(f"{found['clients']} clients × {found['steps']} steps", f"{round_:.2f}", f"{step:.1f}")
        shown.append(table)
    if "scaling" in report:
        table = _table("Growth of a round, of FedAvg where nothing else is said", "", "size: ms", "exponent")
        for curve in report["scaling"].values():
            points = zip(curve["size"], curve["timing"], strict=True)
            cells = "  ".join(f"{size:.0f}: {1e3 * timing['seconds']:.1f}" for size, timing in points)
            table.add_row(curve["title"], cells, f"{curve['exponent']:.2f}")
        shown.append(table)
    if report["targets"]:
        table = _table("Targets", "", "measured", "target", "met")
        for row in report["targets"]:
            table.add_row(row["what"], f"{row['value']:.2f}", row["target"], "yes" if row["met"] else "no")
        shown.append(table)
    return shown


def markdown(report: Report) -> str:
    """The rounds and the targets as tables for a document, with the machine below."""
    lines = []
    if "rounds" in report:
        ours, roofline = report["rounds"]["fedavg"]["seconds"], report["roofline"]["seconds"]
        seconds = {**{name: timing["seconds"] for name, timing in report["rounds"].items()}, "roofline": roofline}
        lines += ["| MNIST, 10 clients × 20 steps of 32 | ms | times our FedAvg round |", "|---|---|---|"]
        lines += [f"| {NAMES[name]} | {1e3 * value:.1f} | {value / ours:.2f} |" for name, value in seconds.items()]
        lines.append("")
    if report["targets"]:
        lines += ["| target | measured | wanted | met |", "|---|---|---|---|"]
        for row in report["targets"]:
            lines.append(f"| {row['what']} | {row['value']:.2f} | {row['target']} | {'yes' if row['met'] else 'no'} |")
        lines.append("")
    return "\n".join([*lines, machine_line(report), ""])


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    return table


def picture(report: Report, path: Path) -> list[Path]:
    """The rounds as bars beside the growth curves, as PNG and SVG."""
    panels = [draw for key, draw in (("rounds", _bars), ("scaling", _curves)) if key in report]
    if not panels:
        return []
    figure = new_figure(6.4 * len(panels), 3.8)
    for number, draw in enumerate(panels):
        draw(figure.add_subplot(1, len(panels), number + 1), report)
    figure.suptitle(machine_line(report), fontsize=7, color="0.4")
    return save_figure(figure, path.parent, path.stem)


def _bars(axes: "Axes", report: Report) -> None:
    order = sorted(report["rounds"].items(), key=lambda item: -item[1]["seconds"])
    for position, (name, timing) in enumerate(order):
        ours = name in ("fedavg", "fedgen", "evaluation")
        axes.barh(position, 1e3 * timing["seconds"], color="C0" if ours else "0.7")
        axes.text(1e3 * timing["seconds"], position, f" {1e3 * timing['seconds']:.0f}", va="center", fontsize=8)
    axes.axvline(1e3 * report["roofline"]["seconds"], color="C3", linestyle="--", linewidth=1, label="roofline")
    axes.set_yticks(range(len(order)), [NAMES[name] for name, _ in order], fontsize=8)
    axes.set(xlabel="ms", title="A round of training, MNIST, 10 clients")
    axes.margins(x=0.12)
    axes.legend(frameon=False, fontsize=8)


def _curves(axes: "Axes", report: Report) -> None:
    for name, curve in report["scaling"].items():
        seconds = [timing["seconds"] for timing in curve["timing"]]
        sizes = [size / curve["size"][0] for size in curve["size"]]
        label = f"{name} × {curve['size'][0]:.0f}: exponent {curve['exponent']:.2f}"
        axes.loglog(sizes, [value / seconds[0] for value in seconds], marker="o", markersize=3, label=label)
    axes.set(xlabel="size, times the smallest", ylabel="time of a round, times the first", title="Growth")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
