"""What `mkdocs build` does beyond Markdown: run the tutorials, and bring in what lies outside docs/."""

from collections.abc import Iterable
from pathlib import Path

import commands
import notebooks
import outside
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
# Files of the repository's root that are pages of the site, too.
FROM_ROOT = {
    "CONTRIBUTING.md": "develop/contributing.md",
    "SECURITY.md": "develop/security.md",
    "CHANGELOG.md": "develop/changelog.md",
}
COMMANDS = "<!-- the commands -->"  # in reference/command.md
FILES = "<!-- the files -->"  # in reference/index.md


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made: tutorials with their output, pages from the root, and linked source files."""
    docs = Path(config.docs_dir)
    for path in sorted((docs / "tutorials").glob("*.py")):
        files.remove(files.src_uris[f"tutorials/{path.name}"])
    for uri, content in notebooks.pages(docs / "tutorials").items():
        files.append(File.generated(config, f"tutorials/{uri}", content=content))
    for name, uri in FROM_ROOT.items():
        files.append(File.generated(config, uri, content=(ROOT / name).read_text(encoding="utf-8")))
    for page in files.documentation_pages():
        for target in outside.targets(page.content_string, _place(page.src_uri)):
            _add(target, files, config)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links that leave docs/ lead to the pages that stand for their targets."""
    uri = page.file.src_uri
    if uri == "reference/command.md":
        markdown = markdown.replace(COMMANDS, commands.page())
    if uri == "reference/index.md":
        markdown = markdown.replace(FILES, "\n".join(_shown(files)))
    return outside.rewritten(markdown, _place(uri), uri, _uri)


def _place(uri: str) -> Path:
    """The folder that a page's links start from."""
    named = {uri: ROOT / name for name, uri in FROM_ROOT.items()}
    return (named.get(uri) or ROOT / "docs" / uri).parent


def _uri(target: Path) -> str:
    """Where the site has a file of the repository."""
    name = target.relative_to(ROOT).as_posix()
    if name in FROM_ROOT:
        return FROM_ROOT[name]
    if name.startswith("docs/"):
        page = target.with_suffix(".md") if target.suffix == ".py" else target  # of a tutorial
        return page.relative_to(ROOT / "docs").as_posix()
    if target.suffix in (".png", ".svg"):
        return f"figures/{target.name}"
    return "index.md" if name == "README.md" else f"source/{name}.md"


def _add(target: Path, files: Files, config: MkDocsConfig) -> None:
    uri = _uri(target)
    if uri in files.src_uris:
        return
    if target.suffix in (".png", ".svg"):
        files.append(File.generated(config, uri, abs_src_path=str(target)))
    else:
        content = "---\nsearch:\n  exclude: true\n---\n" + "\n".join(_source(target))
        files.append(File.generated(config, uri, content=content, inclusion=InclusionLevel.NOT_IN_NAV))


def _source(target: Path) -> Iterable[str]:
    """A page that shows a file, or the files of a folder."""
    yield f"# {target.relative_to(ROOT).as_posix()}\n"
    parts = [target] if target.is_file() else sorted(path for path in target.rglob("*") if _is_text(path))
    for path in parts:
        if len(parts) > 1:
            yield f"## {path.relative_to(target).as_posix()}\n"
        language = {".py": "python", ".toml": "toml", ".md": "markdown"}.get(path.suffix, "text")
        yield f"````{language}\n{path.read_text(encoding='utf-8').rstrip()}\n````\n"


def _shown(files: Files) -> Iterable[str]:
    """A list of the repository's files that the site shows, so that each is two clicks from the start."""
    for uri in sorted(uri for uri in files.src_uris if uri.startswith("source/")):
        yield f"- [`{uri.removeprefix('source/').removesuffix('.md')}`](../{uri})"


def _is_text(path: Path) -> bool:
    return path.suffix in (".py", ".toml", ".md")


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Give the search dialogue a name, which the theme does not."""
    return _named(output)


def on_post_template(output: str, template_name: str, config: MkDocsConfig) -> str:
    """The same on the page for addresses that do not exist."""
    return _named(output)


def _named(output: str) -> str:
    return output.replace('role="dialog">', 'role="dialog" aria-label="Search">')
