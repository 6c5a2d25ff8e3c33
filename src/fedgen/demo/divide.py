"""One dataset divided among the sites of a demonstration: each gets its own samples and nothing else."""

import os

import numpy as np

from fedgen.algorithms import ALGORITHMS, build
from fedgen.federate.deploy.folders import Folders, write_app, write_server, write_site
from fedgen.federate.schema import ServerSettings, SiteSettings, TaskSettings
from fedgen.files import replacing
from fedgen.simulator.setup import Setup


def deal_out(folders: Folders, setup: Setup, server: ServerSettings) -> None:
    """Write app, server and sites such that the federation trains on what the simulator would with this setup."""
    config, data, division = setup.config, setup.data, setup.divisions[setup.config.seed]
    form = setup.form
    task = TaskSettings(
        classes=setup.task.classes,
        class_names=form.class_names,
        sample=form.sample,
        dtype=form.dtype,  # type: ignore[arg-type]
        scale=form.scale,
        max_value=0 if form.dtype in ("float32", "int32") else form.max_value,
    )
    write_app(folders, config, task)
    write_server(folders, server)
    x, y = np.asarray(data.x), np.asarray(data.y)
    rows = setup.score_rows[config.seed]
    test = {"x": np.asarray(data.x_score)[rows], "y": np.asarray(data.y_score)[rows]}
    if server.test:
        write_arrays(folders, "server", server.test, **test)
    if server.proxy:
        write_arrays(folders, "server", server.proxy, x=x[division.proxy])
    for number, name in enumerate(server.sites):
        write_site(folders, SiteSettings(name=name, number=number, data="data.npz"))
        own = division.index[division.offset[number] :][: division.size[number]]
        write_arrays(
            folders, f"sites/{name}", "data.npz", x_train=x[own], y_train=y[own], x_test=test["x"], y_test=test["y"]
        )


def write_arrays(folders: Folders, folder: str, name: str, **arrays: np.ndarray) -> None:
    """Write an .npz file into one of the folders."""
    with replacing(folders.root / folder / name) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
        file.flush()
        os.fsync(file.fileno())


def needs_proxy(setup: Setup) -> bool:
    """Whether the server needs unlabelled proxy samples."""
    (name,) = setup.config.algorithms
    return build(ALGORITHMS[name], setup.task, setup.federation, setup.config.of(name))[0].needs.proxy
