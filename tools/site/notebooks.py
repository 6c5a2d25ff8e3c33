"""The tutorials: notebooks as Python files (jupytext's percent format), executed when the site is built.

Each runs in a kernel and a folder of its own. What it printed and drew becomes part of its page; an error ends the
build. Executed notebooks are kept in build/, under a hash of their text and of the package, so that a second build
runs only what has changed.
"""

import base64
import hashlib
import logging
import os
import re
import resource
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build/tutorials"
LIMIT = 120.0  # CPU seconds that a tutorial may take: a minute on two cores, however busy they are
log = logging.getLogger("mkdocs.hooks.notebooks")
_FOLDER = re.compile(r"\S*/fedgen-tutorial-\w+/")  # the one that a tutorial ran in, which says nothing to readers
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RESULT = re.compile(r'<img alt="[^"]*" src="data:image/png;base64,([^"]*)">')


def pages(folder: Path) -> Mapping[str, str | bytes]:
    """file name -> content: of each tutorial its page, its pictures and the notebook to download."""
    made: dict[str, str | bytes] = {}
    for path in sorted(folder.glob("*.py")):
        made |= _page(path.stem, executed(path))
    return made


def executed(path: Path) -> Any:
    """The notebook with its outputs."""
    KEPT.mkdir(parents=True, exist_ok=True)
    name = f"{path.stem}-{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"
    kept = KEPT / f"{name}-{_package()}.ipynb"
    if os.environ.get("FEDGEN_TUTORIALS") == "kept":  # for writers: also where the package has changed since
        kept = next(iter(KEPT.glob(f"{name}-*.ipynb")), kept)
    if kept.exists():
        return nbformat.read(kept, as_version=4)
    notebook = jupytext.read(path)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    source = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    start = _cpu_seconds()
    with tempfile.TemporaryDirectory(prefix="fedgen-tutorial-") as folder:
        client = NotebookClient(
            notebook,
            timeout=5 * LIMIT,
            resources={"metadata": {"path": folder}},
            extra_arguments=["--log-level=ERROR"],  # no warning that the kernel listens on the loopback interface
        )
        client.execute(env={**os.environ, "PYTHONPATH": source})
    seconds = _cpu_seconds() - start
    log.info("%s: %.0f CPU seconds", path.name, seconds)
    if seconds > LIMIT:
        log.warning("%s took %.0f CPU seconds; a tutorial may take %.0f", path.name, seconds, LIMIT)
    nbformat.write(notebook, kept)
    return notebook


def _cpu_seconds() -> float:
    """Of all processes that were started here and have ended: the kernels."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@cache
def _package() -> str:
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _page(name: str, notebook: Any) -> dict[str, str | bytes]:
    files: dict[str, str | bytes] = {f"{name}.ipynb": nbformat.writes(notebook)}
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source.rstrip()}\n```")
        for output in cell.outputs:
            parts += _output(output, cell.metadata.get("alt", "what this cell draws"), name, files)
    title, _, rest = "\n\n".join(parts).partition("\n")
    return {f"{name}.md": f"{title}\n\n[This page as a notebook]({name}.ipynb){{ download }}\n{rest}\n", **files}


def _output(output: Any, alt: str, name: str, files: dict[str, str | bytes]) -> Iterable[str]:
    """What a cell printed, showed or drew, as Markdown; progress bars are left out."""
    if output.output_type == "stream":
        if output.name == "stdout" and output.text.strip():
            yield _printed(output.text)
        return
    data = output.data
    if "image/png" in data:
        picture = f"{name}-{len(files)}.png"
        files[picture] = _bytes(data["image/png"])
        yield f'<div class="figure" markdown>\n![{alt}]({picture})\n</div>'
    elif "text/html" in data and "<table" in data["text/html"]:
        yield from _html(data["text/html"], alt, name, files)
    elif output.output_type == "execute_result":
        yield _printed(data["text/plain"])


def _html(html: str, alt: str, name: str, files: dict[str, str | bytes]) -> Iterable[str]:
    """A table as HTML, without styles of its own; a picture that comes with it is a file."""
    table = re.search(r"<table.*?</table>", html, re.S)
    assert table is not None
    yield re.sub(r' (border|class|style)="[^"]*"', "", table[0])
    for data in _RESULT.findall(html):
        picture = f"{name}-{len(files)}.png"
        files[picture] = _bytes(data)
        yield f'<div class="figure" markdown>\n![{alt}]({picture})\n</div>'


def _printed(text: str) -> str:
    text = _FOLDER.sub("", _ANSI.sub("", text)).rstrip()
    return f'<div class="output" markdown>\n```text\n{text}\n```\n</div>'


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
