"""An algorithm that is a function of a plain module: each site has the file in its folder, and it is the same file."""

import shutil
import sys
from pathlib import Path

import pytest
from local_federation import local_federation

from fedgen.errors import FedgenError
from fedgen.federate.deploy.folders import Folders
from fedgen.federate.journal import read_journal
from fedgen.federate.site.site import Site
from helpers import small_setup

MODULE = '''
from fedgen.algorithms.fedavg import fedavg


def slow(task, federation, *, factor: float = 0.5):
    """FedAvg with a smaller rate."""
    return fedavg(task, federation.with_values(lr=federation.lr * factor))
'''


def test_the_file_is_looked_for_at_the_site_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "module_of_the_sites.py"
    file.write_text(MODULE)
    try:
        setup = small_setup("module_of_the_sites:slow", users=2, active=2, rounds=1)
        server, _ = local_federation(tmp_path / "federation", setup)
        server.run()
        assert [e["round"] for e in read_journal(server.journal.path) if e["event"] == "done"] == [0]

        place = Folders(tmp_path / "federation")
        monkeypatch.chdir("/")
        sys.modules.pop(file.stem)
        with pytest.raises(FedgenError, match=r"needs algorithm 'module_of_the_sites:slow' from .*, which is not here"):
            Site(place.site("site-0"), place.app)
        shutil.copy(file, place.site("site-0"))
        assert Site(place.site("site-0"), place.app).plan.name == "module_of_the_sites:slow"

        sys.modules.pop(file.stem)
        (place.site("site-1") / file.name).write_text(MODULE + "# another version\n")
        with pytest.raises(FedgenError, match="and here it is module_of_the_sites:slow in a file with SHA-256"):
            Site(place.site("site-1"), place.app)
    finally:
        sys.modules.pop(file.stem, None)
