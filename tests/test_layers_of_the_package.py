"""Imports point one way: what is deeper never knows what is above it."""

import ast
from pathlib import Path

import fedgen

ROOT = Path(fedgen.__file__).parent
# A module may import from its own level and from those before it.
ORDER = [
    {"errors", "version", "files"},
    {"core"},
    {"models", "data"},
    {"algorithms"},
    {"presets", "config", "task", "privacy"},
    {"simulate", "federate"},
    {"experiments"},
    {"report"},
    {"bench"},
    {"library"},
    {"cli_display"},
    {"cli", "cli_bench", "cli_data", "cli_federate", "cli_report", "cli_reproduce"},
]
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}


def _top(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def test_imports_point_one_way() -> None:
    wrong = []
    for path in ROOT.rglob("*.py"):
        name = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if name.startswith("__"):
            continue
        assert name in LEVEL, f"{name} has no place in the order of layers"
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [node.module] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in modules:
                if module and module.startswith("fedgen.") and LEVEL[_top(module)] > LEVEL[name]:
                    wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not wrong


def test_models_and_data_do_not_know_each_other() -> None:
    for folder, other in (("models", "fedgen.data"), ("data", "fedgen.models")):
        for path in (ROOT / folder).rglob("*.py"):
            assert other not in path.read_text(), path


def test_only_federate_and_the_peers_of_the_benchmark_import_flower() -> None:
    for path in ROOT.rglob("*.py"):
        if not {"federate", "peers"} & set(path.parts):
            assert "import flwr" not in path.read_text()
            assert "from flwr" not in path.read_text()


def test_no_pickle_anywhere() -> None:
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        assert "import pickle" not in text
        assert "allow_pickle=True" not in text
