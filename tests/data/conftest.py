"""Where the data tests find the real files, and a cache of their own."""

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.delenv("FEDGEN_DATA", raising=False)
    return cache


@pytest.fixture
def shared_data() -> Path:
    """The folder of real files: $FEDGEN_TEST_DATA, or shared/data beside the checkout."""
    given = os.environ.get("FEDGEN_TEST_DATA")
    places = [Path(given)] if given else [parent / "shared" / "data" for parent in Path(__file__).resolve().parents]
    for place in places:
        if place.is_dir():
            return place
    pytest.skip("the real data files are not here (set FEDGEN_TEST_DATA to their folder)")
