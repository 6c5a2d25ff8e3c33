"""How curves look, in files and on the page: each algorithm the same everywhere, and distinguishable without colour."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

# Dark enough, or bright enough, to be read on white and on near-black paper, also with impaired colour vision.
LIGHT = ("#0b62a8", "#b5540a", "#00795c", "#8a4bb0", "#7a6a00", "#c2337a", "#d3202b", "#4d5661")
DARK = ("#6cb6ff", "#f0a35e", "#4fd1ac", "#c99cf0", "#d9c64a", "#ff8ec0", "#ff7b72", "#aeb7c2")
# Of labels in the plane (Paul Tol's "bright"); markers say the same again.
LABEL_COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#AA3377")
DASHES = ((), (7, 3), (2, 3), (9, 3, 2, 3))  # lengths of strokes and gaps in turn

Style = tuple[int, int]  # which colour, which dash
_STYLES: dict[str, Style] = {
    "fedavg": (0, 0),
    "fedprox": (1, 1),
    "fedensemble": (2, 2),
    "feddistill": (3, 3),
    "feddistill+": (4, 1),
    "feddfusion": (5, 2),
    "fedgen": (6, 0),
    "scaffold": (1, 0),
    "feddyn": (2, 0),
    "fedopt": (3, 0),
    "moon": (4, 0),
    "fedntd": (5, 0),
    "fedlc": (0, 1),
    "fedsam": (2, 1),
    "ccvr": (3, 1),
    "fedmoments": (7, 3),
    "fedproto": (5, 1),
    "fedrep": (6, 1),
    "ditto": (7, 1),
}
# For algorithms that are not ours, chosen by their names so that each has the same everywhere.
_FREE = [(c, d) for d in range(len(DASHES)) for c in range(len(LIGHT)) if (c, d) not in _STYLES.values()]


def styles_of(columns: Sequence[Mapping[str, Any]]) -> dict[str, Style]:
    """The styles of an experiment's columns, by name.

    The first of an algorithm has that algorithm's; the others, its variants, have colours of their own while there are
    any that no algorithm here has.
    """
    free = set(range(len(LIGHT))) - {style_of(column["algorithm"])[0] for column in columns}
    seen: Counter[str] = Counter()
    styles: dict[str, Style] = {}
    for column in columns:
        algorithm, number = column["algorithm"], seen[column["algorithm"]]
        new = [(colour, style_of(algorithm, number)[1]) for colour in sorted(free)] if number else []
        all_of_it = [style_of(algorithm, variant) for variant in range(len(LIGHT) * len(DASHES))]
        styles[column["name"]] = next((s for s in (*new, *all_of_it) if s not in styles.values()), all_of_it[0])
        free.discard(styles[column["name"]][0])
        seen[algorithm] += 1
    return styles


def style_of(algorithm: str, variant: int = 0) -> Style:
    """Colour and dash of an algorithm; its variants share the colour as far as the dashes go."""
    colour, dash = _STYLES.get(algorithm) or _FREE[crc32(algorithm.encode()) % len(_FREE)]
    return (colour + variant // len(DASHES)) % len(LIGHT), (dash + variant) % len(DASHES)
