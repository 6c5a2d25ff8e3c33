"""Chromium without a screen, driven by Playwright, for tests of web pages; and what axe-core finds in one."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NEEDED = os.environ.get("FEDGEN_NEED_BROWSER") == "1"  # set where a browser must be there, as in CI
SIZES = [(390, 844), (1280, 900)]
SCHEMES = ["light", "dark"]


def chromium() -> Iterator[Any]:
    """The browser; where there is none, the tests are skipped, or fail where it is needed."""
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        message = f"no browser: install Chromium (one of {', '.join(NAMES)} on the PATH) to test web pages"
        pytest.fail(message) if NEEDED else pytest.skip(message)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


def serious_findings(page: Any) -> list[str]:
    """What axe-core calls serious or critical on a page: the rule, how often, and the first place."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        f"{rule['id']} ({len(rule['nodes'])} times): {rule['nodes'][0]['html'][:200]}"
        for rule in found
        if rule["impact"] in ("serious", "critical")
    ]
