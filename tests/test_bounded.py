"""The time limit of tests, held against a test that would never end."""

import os
import subprocess
import sys
from pathlib import Path


def test_a_test_that_does_not_end_fails_and_cleans_up(tmp_path: Path) -> None:
    (tmp_path / "test_endless.py").write_text(
        "import threading\n"
        "from pathlib import Path\n"
        "def test_endless():\n"
        "    try:\n"
        "        threading.Event().wait()\n"
        "    finally:\n"
        "        Path(__file__).with_name('cleaned').touch()\n"
        "def test_after(): pass\n"
    )
    environment = {**os.environ, "FEDGEN_TEST_LIMIT": "2", "PYTHONPATH": str(Path(__file__).parent)}
    options = ["-p", "bounded", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(tmp_path), str(tmp_path)]
    command = [sys.executable, "-m", "pytest", *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "it took longer than 2 seconds" in done.stdout
    assert "1 failed, 1 passed" in done.stdout
    assert (tmp_path / "cleaned").exists()
