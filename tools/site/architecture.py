"""Draws docs/develop/*.svg: `python tools/site/architecture.py` writes the packages and the two ways through them.

The packages and their arrows are those of the import graph, which is read from the source: an arrow means that a
package imports another, and is left out where a longer way leads there, too. The ways are lists of functions below; a
test checks that each of them exists.
"""

import ast
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE, PICTURES = ROOT / "src/fedgen", ROOT / "docs/develop"
# What everything may import, and which would be an arrow from everywhere.
EVERYWHERE = ("errors", "version", "files", "toml", "registry", "settings")
# A few words for each package; one without them is drawn with its name alone.
WORDS = {
    "core": "contract, local training",
    "models": "networks, frameworks",
    "data": "datasets, files, partitions",
    "algorithms": "one file for each",
    "presets": "paper, reference, tuned",
    "config": "settings, checked once",
    "given": "what callers bring",
    "compiled": "the cache of programs",
    "runs": "run folders, scores, trackers",
    "simulator": "a round as one program",
    "federate": "server, gate, sites",
    "demo": "both, compared",
    "grid": "many runs, kept as cells",
    "report": "tables, figures, web page",
    "sweeps": "settings chosen by validation",
    "paper": "tables of the paper",
    "full_report": "the page of all there is",
    "bench": "beside PyTorch, Flower, pfl",
    "use": "load, predict, export",
    "library": "fedgen.simulate",
    "cli": "the command",
}
# Each step: what happens, and the function that does it.
MINIBATCH = (
    ("who takes part", "runs.cohort:draw_cohort"),
    ("which samples", "core.recipe:draw_batches"),
    ("bytes to numbers", "runs.task:PREPARE"),
    ("shift, flip, crop", "core.augment:augmented"),
    ("the loss", "core.losses:supervised"),
    ("gradient, optimiser", "core.optimise:descend"),
    ("what is sent", "algorithms.fedavg:averaging"),
)
UPLOAD = (
    ("local training", "federate.site.site:Site"),
    ("noise, if private", "core.privacy:privatise"),
    ("arrays to bytes", "federate.wire:encode"),
    ("TLS, key, size", "federate.gate.gate:Gate"),
    ("names, shapes, finite", "federate.server.checks:checked_update"),
    ("bounds, average", "core.aggregate:combine"),
    ("keep, or take back", "federate.server.judge:outliers"),
)
INK, PAPER, LINE, ACCENT = "#1c2b29", "#ffffff", "#5b7a74", "#17594a"
FONT = 'font-family="system-ui, -apple-system, Segoe UI, Roboto, sans-serif"'


def imports(source: Path = SOURCE) -> dict[str, set[str]]:
    """package or module -> those of the same level that it imports, without what is imported everywhere."""
    graph: dict[str, set[str]] = {}
    for path in sorted(source.rglob("*.py")):
        name = path.relative_to(source).parts[0].removesuffix(".py")
        if name.startswith("__") or name in EVERYWHERE:
            continue
        found = graph.setdefault(name, set())
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found |= {part.split(".")[1] for part in _modules(node) if part.startswith("fedgen.")}
    return {name: found - {name, *EVERYWHERE} for name, found in graph.items()}


def _modules(node: ast.AST) -> Iterable[str]:
    if isinstance(node, ast.ImportFrom):
        return [f"fedgen.{alias.name}" for alias in node.names] if node.module == "fedgen" else [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def reduced(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The graph without arrows that a longer way replaces."""

    def reached(start: str) -> set[str]:
        return {start}.union(*(reached(other) for other in graph[start]))

    return {
        name: {to for to in found if not any(to in reached(other) for other in found - {to})}
        for name, found in graph.items()
    }


def depths(graph: Mapping[str, set[str]]) -> dict[str, int]:
    """How many arrows the longest way from the top to a package has."""
    importers = {name: {other for other, found in graph.items() if name in found} for name in graph}
    known: dict[str, int] = {}

    def depth(name: str) -> int:
        if name not in known:
            known[name] = 1 + max(map(depth, importers[name]), default=-1)
        return known[name]

    return {name: depth(name) for name in graph}


def packages() -> str:
    """The drawing of the packages, what is imported below what imports it."""
    graph = imports()
    arrows, depth = reduced(graph), depths(graph)
    box_w, slot, box_h, gap_x, gap_y, edge = 172, 10, 52, 20, 40, 16
    # An arrow over several rows passes through a slot of each row between, so that it crosses no box.
    ways = {
        (name, to): [name, *(f"{name} {to} {row}" for row in range(depth[name] + 1, depth[to])), to]
        for name, found in sorted(arrows.items())
        for to in sorted(found)
    }
    rows: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for name in sorted(graph):
        rows[depth[name]].append(name)
    for passed in ways.values():
        for name in passed[1:-1]:
            rows[int(name.split()[-1])].append(name)
    wide = {name: box_w if name in graph else slot for row in rows for name in row}
    steps = [pair for passed in ways.values() for pair in pairwise(passed)]
    _order(rows, steps)
    width = max(sum(wide[name] + gap_x for name in row) for row in rows) - gap_x + 2 * edge
    middle: dict[str, float] = {}
    for row in rows:
        left = (width - sum(wide[name] + gap_x for name in row) + gap_x) / 2
        for name in row:
            middle[name] = left + wide[name] / 2
            left += wide[name] + gap_x
    top = {name: edge + number * (box_h + gap_y) for number, row in enumerate(rows) for name in row}
    parts = []
    for (name, to), passed in ways.items():
        path = f"M{middle[name]:.0f} {top[name] + box_h:.0f}"
        for one, other in pairwise(passed):
            start, end = top[one] + box_h, top[other] - (2 if other == to else 0)
            path += f" C{middle[one]:.0f} {start + gap_y / 2:.0f} {middle[other]:.0f} {end - gap_y / 2:.0f}"
            path += f" {middle[other]:.0f} {end:.0f}" + ("" if other == to else f" v{box_h}")
        parts.append(
            f'<path data-from="{name}" data-to="{to}" d="{path}" fill="none" stroke="{LINE}" marker-end="url(#head)"/>'
        )
    for name in sorted(graph):
        parts += _box(middle[name] - box_w / 2, top[name], box_w, box_h, name, WORDS.get(name, ""))
    height = 2 * edge + len(rows) * (box_h + gap_y) - gap_y
    return _svg(width, height, "The packages of fedgen; an arrow leads from a package to one that it imports", parts)


def _order(rows: list[list[str]], steps: Sequence[tuple[str, str]]) -> None:
    """Put what belongs together above each other: some sweeps down and up, by the mean place of neighbours."""
    beside: dict[str, list[str]] = {name: [] for row in rows for name in row}
    for one, other in steps:
        beside[one].append(other)
        beside[other].append(one)
    for turn in range(12):
        for row in rows if turn % 2 == 0 else rows[::-1]:
            place = {name: (at + 0.5) / len(line) for line in rows for at, name in enumerate(line)}
            row.sort(key=lambda name: (sum(place[n] for n in beside[name]) / max(len(beside[name]), 1), name))


def way(steps: Iterable[tuple[str, str]], title: str) -> str:
    """The drawing of a way through the packages, four steps to a row."""
    steps = list(steps)
    box_w, box_h, gap, edge, columns = 236, 56, 34, 16, 4
    parts = []
    for number, (words, function) in enumerate(steps):
        row, column = divmod(number, columns)
        x, y = edge + column * (box_w + gap), edge + row * (box_h + gap)
        parts += _box(x, y, box_w, box_h, f"{number + 1}  {words}", function.replace(":", "."))
        if number + 1 < len(steps):
            if column + 1 < columns:
                line = f"M{x + box_w} {y + box_h / 2} h{gap - 3}"
            else:
                line = f"M{x + box_w / 2} {y + box_h} v{gap / 2} H{edge + box_w / 2} v{gap / 2 - 3}"
            parts.append(f'<path d="{line}" fill="none" stroke="{LINE}" marker-end="url(#head)"/>')
    rows = -(-len(steps) // columns)
    return _svg(columns * (box_w + gap) - gap + 2 * edge, rows * (box_h + gap) - gap + 2 * edge, title, parts)


def _box(x: float, y: float, width: float, height: float, name: str, words: str) -> list[str]:
    middle = x + width / 2
    return [
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{width}" height="{height}" rx="6" fill="#eef5f3" stroke="{ACCENT}"/>',
        f'<text x="{middle:.0f}" y="{y + 21:.0f}" font-size="14" font-weight="600">{escape(name)}</text>',
        f'<text x="{middle:.0f}" y="{y + 39:.0f}" font-size="10.5">{escape(words)}</text>',
    ]


def _svg(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    head = (
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 8 4 0 8z" fill="{LINE}"/></marker>'
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}"'
            f' height="{height:.0f}" role="img" {FONT} text-anchor="middle" fill="{INK}">',
            f"<title>{escape(title)}</title><defs>{head}</defs>",
            f'<rect width="100%" height="100%" fill="{PAPER}"/>',
            *parts,
            "</svg>\n",
        ]
    )


def drawings() -> dict[str, str]:
    """file name -> content, of all drawings."""
    return {
        "packages.svg": packages(),
        "minibatch.svg": way(MINIBATCH, "One mini-batch's way: from the cohort to what a user sends"),
        "upload.svg": way(UPLOAD, "One upload's way: from a site's training to the server's model"),
    }


if __name__ == "__main__":
    for name, content in drawings().items():
        (PICTURES / name).write_text(content, encoding="utf-8")
