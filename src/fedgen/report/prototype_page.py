"""The prototype on the page: its table, and panels of decision regions and of the generator's points."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedgen.report.parts import Cell, Chart, Column, Table


def prototype_parts(result: Mapping[str, Any], name: str) -> tuple[list[Table], list[Chart]]:
    """The table as the experiment made it, and its pictures."""
    titles, rows = result["table"]["titles"], result["table"]["rows"]
    columns = [Column(title, number=i > 0) for i, title in enumerate(titles)]
    table = Table("", columns, [[_cell(text) for text in row] for row in rows])
    return [table], [_panels(result, name)]


def _cell(text: str) -> Cell:
    """Our number, and the published one that follows it in brackets on a line of its own."""
    ours, _, theirs = text.partition(" (")
    below = [Cell(f"published {theirs.rstrip(')')}")] if theirs else []
    mean, _, std = ours.partition(" ")
    try:
        return Cell(mean, float(mean), std, below=below)
    except ValueError:  # a row's name, or nothing
        return Cell(text, text or None)


def _panels(result: Mapping[str, Any], name: str) -> Chart:
    pictures = result["pictures"]
    regions, accuracy, extent = pictures["regions"], pictures["accuracy"], pictures["extent"]
    users = pictures["users"]
    everyone = {key: [value for user in users for value in user[key]] for key in ("x", "y")}

    def panel(title: str, note: str, drawn: Sequence[str], points: Mapping[str, Any], within: Any = extent) -> Any:
        return {
            "title": title, "note": note, "regions": drawn, "extent": within, "x": points["x"], "y": points["y"],
            "frame": extent if within != extent else None,
        }  # fmt: skip

    groups = [
        {
            "title": f"Users {when} distillation",
            "panels": [
                panel(f"User {k + 1}", f"{accuracy[when][k]:.1f} % right", regions[when][k], users[k])
                for k in range(len(users))
            ],
        }
        for when in ("before", "after")
    ]
    single = (("average", "Average"), ("oracle", "Oracle"))
    groups.append(
        {
            "title": "One model for all",
            "panels": [
                panel(title, f"{accuracy[key]:.1f} % right", regions[key][0], everyone) for key, title in single
            ],
        }
    )
    groups.append(
        {
            "title": "The generator's points",
            "panels": [
                panel(
                    f"After {stage['steps']} steps",
                    f"{stage['recognised']:.0f} % recognised",
                    *_stage(pictures, stage, stage["steps"] > 250),
                )
                for stage in pictures["samples"]
            ],
        }
    )
    caption = (
        f"Seed {pictures['seed']}. A region's colour is the label that a model predicts there; points are training"
        " samples, or what the generator makes of each label (over the oracle's regions). The average is of the users'"
        " models before; the oracle was trained on all users' data. The last panel is a wider view; its dashed frame is"
        " what the others show."
    )
    return Chart(f"{name}.panels", "panels", "Decision regions", caption, {"groups": groups}, origin=result)


def _stage(pictures: Mapping[str, Any], stage: Mapping[str, Any], beyond: bool) -> tuple[Any, Any, Any]:
    """Later than the paper shows the points are so far out that they take a wider view."""
    if beyond:
        return pictures["wide_regions"]["oracle"][0], stage, pictures["wide_extent"]
    return pictures["regions"]["oracle"][0], stage, pictures["extent"]
