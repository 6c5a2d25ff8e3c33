"""The benchmark's tables, for the terminal and for documents, and its picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgen.report.figures import new_figure, save_figure
from fedgen.report.markdown import markdown as lines
from fedgen.report.table import Cell, Column, Number, Table, Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Report = Mapping[str, Any]

NAMES = {
    "fedavg": "FedGen project: FedAvg round",
    "fedgen": "FedGen project: FedGen round",
    "evaluation": "FedGen project: evaluation, 10,000 images",
    "pytorch": "PyTorch loop, one thread",
    "pytorch-2-processes": "PyTorch loop, two processes",
    # Nothing else is asked of PyTorch there.
    "pytorch-gpu": "PyTorch loop, GPU, by its defaults (TF32 in convolutions)",
    "flower": "Flower's simulation",
    "pfl": "pfl",
    "pfl-gpu": "pfl, GPU, by PyTorch's defaults (TF32 in convolutions)",
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
    """What was measured."""
    parts = {
        "rounds": _rounds, "seeds": _seeds, "networks": _networks, "resnet": _resnet, "pfl_cifar10": _pfl_cifar10,
        "sweep": _sweep, "scaling": _scaling, "targets": _targets,
    }  # fmt: skip
    return [build(report) for part, build in parts.items() if report.get(part)]


def markdown(report: Report) -> str:
    """The rounds and the targets for a document, with the machine below."""
    shown = [build(report) for part, build in (("rounds", _rounds), ("targets", _targets)) if report.get(part)]
    return "\n".join([*(line for table in shown for line in (*lines(table), "")), machine_line(report), ""])


def _rounds(report: Report) -> Table:
    ours, roofline = report["rounds"]["fedavg"]["seconds"], report["roofline"]
    rows: list[list[Cell]] = [
        [Text(NAMES[name]), _ms(timing["seconds"]), _range(timing, ".1f"), Number(timing["seconds"] / ours)]
        for name, timing in report["rounds"].items()
    ]
    peak = Text(f"{roofline['peak_gflops']:.0f} GFLOP/s")
    rows.append([Text(NAMES["roofline"]), _ms(roofline["seconds"]), peak, Number(roofline["seconds"] / ours)])
    return _table("MNIST, 10 clients × 20 steps of 32", ("ms", "range", "times our FedAvg round"), rows)


def _seeds(report: Report) -> Table:
    seeds = report["seeds"]
    rows: list[list[Cell]] = [
        [Text(f"{name} round"), _ms(timing["seconds"], ".2f"), _range(timing, ".2f")]
        for name, timing in seeds["rounds"].items()
    ]
    if whole := seeds.get("whole_run"):
        note = Text(f"and {whole['seconds_compile']:.1f} s compiling")
        rows.append([Text(f"fedgen, 3 seeds, {whole['rounds']} rounds"), _ms(whole["seconds"], ".0f"), note])
    return _table(f"{seeds['at_once']} runs at once", ("ms", "range"), rows)


def _networks(report: Report) -> Table:
    found = report["networks"]
    ours = found.get("built in")
    rows: list[list[Cell]] = [
        [Text(name), _ms(timing["seconds"], ".2f"), _range(timing, ".2f"), _times(timing, ours)]
        for name, timing in found.items()
    ]
    return _table("The paper's CNN, a FedAvg round", ("ms", "range", "times the built-in one"), rows)


def _resnet(report: Report) -> Table:
    found = report["resnet"]
    ours = found["rounds"].get("float32")
    rows: list[list[Cell]] = [
        [Text(NAMES.get(name, name)), _ms(timing["seconds"]), _range(timing, ".1f"), _times(timing, ours)]
        for name, timing in found["rounds"].items()
    ]
    title = (
        f"A {found['network']} network of {found['parameters'] / 1e6:.1f} million parameters, 32×32×3,"
        f" {found['clients']} clients × {found['steps']} steps of 32"
    )
    return _table(title, ("ms", "range", "times ours"), rows)


def _pfl_cifar10(report: Report) -> Table:
    found = report["pfl_cifar10"]
    rounds = found.get("round", {})
    rows: list[list[Cell]] = [
        [Text(NAMES.get(name, name)), _ms(timing["seconds"]), _range(timing, ".1f"), _times(timing, rounds.get("ours"))]
        for name, timing in rounds.items()
    ]
    for precision, whole in found["ours"].items():
        note = Text(f"and {whole['compiling']:.1f} s compiling")
        name = f"ours, {found['rounds']} rounds with evaluation, {precision}"
        rows.append([Text(name), _ms(whole["seconds"], ".0f"), note, Text("")])
    data = "CIFAR-10" if found["real"] else "images of CIFAR-10's form"
    return _table(f"pfl's CIFAR-10 benchmark, {data}: a round", ("ms", "range", "times ours"), rows)


def _sweep(report: Report) -> Table:
    found = report["sweep"]
    seconds = found["seconds"]
    name = Text(f"{found['runs']} runs of {found['rounds']} rounds ({', '.join(found['algorithms'])})")
    each = Number(1e3 * seconds / (found["runs"] * found["rounds"]))
    title = "One sweep, from the shell, with all compiling"
    return _table(title, ("s", "ms per run and round"), [[name, Number(seconds, form=".1f"), each]])


def _scaling(report: Report) -> Table:
    rows: list[list[Cell]] = []
    for curve in report["scaling"].values():
        points = zip(curve["size"], curve["timing"], strict=True)
        sizes = "  ".join(f"{size:.0f}: {1e3 * timing['seconds']:.1f}" for size, timing in points)
        rows.append([Text(curve["title"]), Text(sizes), Number(curve["exponent"])])
    return _table("Growth of a round, of FedAvg where nothing else is said", ("size: ms", "exponent"), rows)


def _targets(report: Report) -> Table:
    rows: list[list[Cell]] = [
        [Text(row["what"]), Number(row["value"]), Text(row["target"]), Text("yes" if row["met"] else "no")]
        for row in report["targets"]
    ]
    return _table("target", ("measured", "wanted", "met"), rows)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    return Table([Column(title, number=False), *map(Column, columns)], rows)


def _ms(seconds: float, form: str = ".1f") -> Number:
    return Number(1e3 * seconds, form=form)


def _times(timing: Mapping[str, float], ours: Mapping[str, float] | None) -> Number:
    """How many times as long as ours, if that was measured."""
    return Number(timing["seconds"] / ours["seconds"] if ours else None)


def _range(timing: Mapping[str, float], form: str) -> Text:
    return Text(f"{1e3 * timing['low']:{form}} … {1e3 * timing['high']:{form}}")


def picture(report: Report, path: Path) -> list[Path]:
    """The rounds as bars beside the growth curves, as PNG and SVG."""
    panels = [draw for key, draw in (("rounds", _bars), ("scaling", _curves)) if key in report]
    if not panels:
        return []
    figure = new_figure(6.4 * len(panels), 4.2)
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
    _legend_below(axes)


def _curves(axes: "Axes", report: Report) -> None:
    for name, curve in report["scaling"].items():
        seconds = [timing["seconds"] for timing in curve["timing"]]
        sizes = [size / curve["size"][0] for size in curve["size"]]
        label = f"{name} × {curve['size'][0]:.0f}"
        if curve["exponent"] is not None:
            label += f": exponent {curve['exponent']:.2f}"
        axes.loglog(sizes, [value / seconds[0] for value in seconds], marker="o", markersize=3, label=label)
    axes.set(xlabel="size, times the smallest", ylabel="time of a round, times the first", title="Growth")
    axes.grid(alpha=0.3)
    _legend_below(axes)


def _legend_below(axes: "Axes") -> None:
    """Where no line can be."""
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.16))
