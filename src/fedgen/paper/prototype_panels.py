"""The prototype on the page: panels of decision regions and of the generator's points."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fedgen.paper.prototype_figure import prototype_figure
from fedgen.report.parts import Chart


def prototype_panels(result: Mapping[str, Any], name: str) -> Chart:
    """The experiment's pictures; its files are those of the paper's figure."""
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
    save = partial(prototype_figure, result)
    return Chart(f"{name}.panels", "panels", "Decision regions", caption, {"groups": groups}, save)


def _stage(pictures: Mapping[str, Any], stage: Mapping[str, Any], beyond: bool) -> tuple[Any, Any, Any]:
    """Later than the paper shows the points are so far out that they take a wider view."""
    if beyond:
        return pictures["wide_regions"]["oracle"][0], stage, pictures["wide_extent"]
    return pictures["regions"]["oracle"][0], stage, pictures["extent"]
