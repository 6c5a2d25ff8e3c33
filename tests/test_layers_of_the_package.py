"""Imports point one way: what is deeper never knows what is above it."""

import ast
import importlib
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import fedgen

ROOT = Path(fedgen.__file__).parent
# A module may import from its own level and from those before it.
ORDER = [
    {"errors", "version", "files", "toml", "registry", "settings"},
    {"core"},
    {"models", "data"},
    {"algorithms"},
    {"presets", "config"},
    {"runs", "compiled", "given"},
    {"simulator", "federate"},
    {"demo", "grid", "report"},
    {"sweeps"},
    {"paper", "bench", "use"},
    {"full_report"},
    {"library"},
    {"cli"},
]
# Of one level, and yet they do not know each other.
APART = [
    *({"models", "data"}, {"simulator", "federate"}, {"demo", "grid"}, {"grid", "report"}, {"paper", "bench"}),
    *({"use", "paper"}, {"use", "bench"}),
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
            if modules == ["fedgen"] and isinstance(node, ast.ImportFrom):  # `from fedgen import simulate`, say
                modules = [fedgen._MODULE_OF.get(alias.name, f"fedgen.{alias.name}") for alias in node.names]
            for module in modules:
                if module and module.startswith("fedgen.") and not _may_import(name, _top(module)):
                    wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not wrong


def _may_import(name: str, other: str) -> bool:
    return LEVEL[other] <= LEVEL[name] and (name == other or {name, other} not in APART)


# The benchmark compares with Flower's own simulation. It runs this file in a separate process, as it runs the other
# systems that it compares with: nothing of FedGen imports it, and nothing of it takes part in a federation.
FLOWER_AS_A_PEER = "bench/peers/flower_simulation.py"


def _imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def test_only_federate_imports_flower_and_one_peer_of_the_benchmark_that_nobody_imports() -> None:
    imports = {str(path.relative_to(ROOT)): _imported(path) for path in ROOT.rglob("*.py")}
    flower = {path for path, names in imports.items() if any(name.split(".")[0] == "flwr" for name in names)}
    assert {path for path in flower if not path.startswith("federate/")} == {FLOWER_AS_A_PEER}
    peer = "fedgen." + FLOWER_AS_A_PEER.removesuffix(".py").replace("/", ".")
    assert not [path for path, names in imports.items() if peer in names]


def test_no_pickle_anywhere() -> None:
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        assert "import pickle" not in text
        assert "allow_pickle=True" not in text


def test_a_run_holds_no_matplotlib_while_it_compiles() -> None:
    code = "import sys, fedgen.cli.main; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_run_imports_pallas_only_where_its_kernels_run() -> None:
    code = "import sys, fedgen.simulator.run, fedgen.models; sys.exit('jax.experimental.pallas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _modules() -> dict[str, Path]:
    """name -> file of every module; a package's is its __init__."""
    names = {path: ".".join(("fedgen", *path.relative_to(ROOT).with_suffix("").parts)) for path in ROOT.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


def _imports_within() -> dict[str, set[str]]:
    """module -> the modules of fedgen that it imports anywhere, in its functions too.

    `from package import module` imports that module; that Python runs the package's __init__ before is left out.
    """
    modules = _modules()
    found: dict[str, set[str]] = {}
    for name, path in modules.items():
        found[name] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{name} has a relative import, which this test does not follow"
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                found[name] |= inner & modules.keys()
                found[name] |= {str(node.module)} & modules.keys() if inner - modules.keys() else set()
            if isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names} & modules.keys()
    return found


def test_no_modules_import_each_other_in_a_circle() -> None:
    imports = _imports_within()
    assert "fedgen.models.nvidia.layers" in imports["fedgen.models.dispatch"], "imports in functions are seen"
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_layers_know_no_kernels_and_kernels_no_layers() -> None:
    imports, models = _imports_within(), "fedgen.models"
    assert not {name for name in imports[f"{models}.layers"] if name.startswith(models)}
    assert not {name for name in imports[f"{models}.nvidia.kernels"] if name.startswith(models)}
    beside = {name for name in imports if not name.startswith(f"{models}.nvidia")}
    assert {name for name in beside if any(i.startswith(f"{models}.nvidia") for i in imports[name])} == {
        f"{models}.dispatch"
    }


def test_the_drawing_of_the_packages_has_the_arrows_of_the_import_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the graph above, by packages, without what all import and without what a longer way replaces."""
    monkeypatch.syspath_prepend(str(ROOT.parents[1] / "tools/site"))
    import architecture

    graph: dict[str, set[str]] = {}
    for module, others in _imports_within().items():
        name = _top(module)
        if name not in (*architecture.EVERYWHERE, "__init__", "__main__"):
            graph.setdefault(name, set()).update(map(_top, others))
    graph = {name: {other for other in found if other in graph and other != name} for name, found in graph.items()}

    def below(name: str) -> set[str]:
        return graph[name].union(*map(below, graph[name]))

    arrows = {(a, b) for a in graph for b in graph[a] if not any(b in below(c) for c in graph[a])}
    drawing = (ROOT.parents[1] / "docs/develop/packages.svg").read_text()
    assert set(re.findall(r'data-from="(\w+)" data-to="(\w+)"', drawing)) == arrows, "python tools/site/architecture.py"
    assert architecture.packages() == drawing
    assert set(graph) == set(architecture.WORDS), "each package has a few words, and none is gone"


def test_the_drawn_ways_pass_through_functions_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT.parents[1] / "tools/site"))
    import architecture

    for name, content in architecture.drawings().items():
        assert (architecture.PICTURES / name).read_text() == content, "python tools/site/architecture.py"
    for _, function in (*architecture.MINIBATCH, *architecture.UPLOAD):
        module, name = function.split(":")
        assert hasattr(importlib.import_module(f"fedgen.{module}"), name), function
