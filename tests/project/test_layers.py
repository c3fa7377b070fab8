"""Who may import whom, and that the program needs nothing it does not declare."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from support.layers import LAYERS, ROOT, diagram, imports, layer, modules
from support.paths import ROOT as PROJECT

PAGE = PROJECT / "docs" / "concepts" / "architecture.md"
BLOCKED = ["mlxtend", "pandas", "safetensors", "onnx", "nacl", "flwr", "hypothesis"]
DECLARED = ["torch", "llvmlite", "numpy", "scikit-learn", "scipy", "matplotlib", "typer", "rich"]


def test_lower_layers_never_import_higher_ones() -> None:
    found = modules()
    for home in LAYERS:
        path = ROOT / home.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").is_file(), f"strike {home} off LAYERS"
    wrong = []
    for name, path in found.items():
        for line, other in imports(path, set(found)):
            if other and layer(other) > layer(name):
                wrong.append(f"{name}:{line} imports {other}")
    assert not wrong


def test_every_package_has_a_layer_of_its_own() -> None:
    assert len(set(LAYERS)) == len(LAYERS)
    packages = [path.parent for path in ROOT.rglob("__init__.py") if path.parent != ROOT]
    names = {".".join(path.relative_to(ROOT).parts) for path in packages}
    nested = ("simulator.adversaries", "simulator.fuzz.mutants", "data.partition", "runs.trackers")
    assert names - set(LAYERS) <= set(nested)


def test_the_hall_has_at_most_27_entries_and_no_loose_commands() -> None:
    # Every package has an __init__, and may have a __main__.
    entries = [path.name for path in ROOT.iterdir() if not path.name.startswith("__")]
    assert len(entries) <= 27
    assert not [path for path in ROOT.rglob("*.py") if path.stem.endswith("_show")]
    assert not [name for name in entries if name.startswith("cli_")]


def test_the_docs_show_the_diagram_that_the_imports_draw() -> None:
    assert diagram() in PAGE.read_text(encoding="utf-8"), "run `make docs`"


# What every server runs, with the simulated ones, their attackers and their auditors.
SERVER = (
    "audit",
    "committee",
    "committee.round_result",
    "consensus.replica",
    "errors",
    "federation.signatures",
    "files.hash_chain",
    "prototypes.fixed_point",
    "robust.aggregation",
    "robust.attacks",
    "robust.centres",
    "robust.detectors",
    "simulator.world",
)


def test_what_servers_decide_needs_no_torch() -> None:
    """A server of the committee is numpy, integers and these modules, in a process of its own."""
    modules_ = ", ".join(f"fedrfq.{name}" for name in SERVER)
    script = (
        f"import sys, {modules_}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(done.stdout.split())
    assert {"fedrfq", "numpy"} <= loaded
    assert not loaded & {"torch", "sklearn", "matplotlib", "typer", "rich", "nacl"}


IMPORT_ALL = f"""
import importlib, importlib.metadata, pkgutil, re, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {BLOCKED!r}:
            raise ImportError(name + " is blocked")

before = set(sys.modules)
sys.meta_path.insert(0, Blocker())
import fedrfq
for module in pkgutil.walk_packages(fedrfq.__path__, "fedrfq.", onerror=str):
    # The Flower app needs an extra.
    if not module.name.endswith("__main__") and not module.name.startswith("fedrfq.flower"):
        importlib.import_module(module.name)

import numpy as np, torch
from fedrfq.data import Dataset
from fedrfq.experiment import from_table
from fedrfq.learning.round_loop import RoundLoop
x, y = np.random.default_rng(0).integers(0, 255, (40, 1, 6, 6), np.uint8), np.arange(40) % 2
dataset = Dataset("toy", x, y, x, y, ("a", "b"), (0.5,), (0.5,), "")
partition = {{"ways": 2, "spread": 0, "shots": 5, "test_shots": 5}}
small = {{"clients": 2, "model": {{"name": "mlp"}}, "partition": partition}}
loop = RoundLoop([from_table(small)], dataset, torch.device("cpu"))
state, _ = loop.advance(loop.start())
loop.silhouettes(state)

def plain(name):
    return re.sub("[-_.]+", "-", name).lower()

def needs(name, seen):
    if plain(name) in seen:
        return
    seen.add(plain(name))
    try:
        wanted = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for one in wanted:
        if "extra ==" not in one:
            needs(re.match("[A-Za-z0-9._-]+", one)[0], seen)

# numpy.f2py, which scikit-learn's checks of arrays load, takes charset_normalizer where it is.
allowed = {{"fedrfq", plain("charset-normalizer")}}
for name in {DECLARED!r}:
    needs(name, allowed)
owners = importlib.metadata.packages_distributions()
for name in sorted({{name.split(".")[0] for name in set(sys.modules) - before}}):
    if name in sys.stdlib_module_names or name not in owners:
        continue
    if not allowed & set(map(plain, owners[name])):
        print("undeclared:", name)
print("imported", len([name for name in sys.modules if name.startswith("fedrfq")]))
"""


def test_nothing_undeclared_is_imported_by_any_module_or_by_a_round() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "undeclared" not in done.stdout
    assert int(done.stdout.split()[-1]) > len(
        [name for name in modules() if not name.startswith("flower")]
    )


# Distributions whose import name is another one. Pillow comes with matplotlib; pandas is used for
# tables where somebody has it, and done without where not.
IMPORTED_AS = {"scikit-learn": "sklearn", "pynacl": "nacl", "vl-convert-python": "vl_convert"}
IMPORTED_AS |= {
    "cuda-core": "cuda",
    "dp-accounting": "dp_accounting",
    "flwr-datasets": "flwr_datasets",
    "huggingface-hub": "huggingface_hub",
}
ALSO = {"fedrfq", "PIL", "pandas"}


def test_only_declared_packages_are_imported_directly() -> None:
    """What a dependency happens to bring may be gone with its next release."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    names = ("train", "onnx", "report", "flower", "huggingface", "track", "privacy", "cuda")
    runtime = [extras[name] for name in names]
    declared = {
        re.split(r"[^\w-]", line)[0]
        for lines in [project["dependencies"], *runtime]
        for line in lines
    }
    allowed = {IMPORTED_AS.get(name, name) for name in declared} | ALSO
    for name, path in modules().items():
        wrong = third_party(path) - allowed
        assert not wrong, f"{name} imports {wrong}"


def third_party(path: Path) -> set[str]:
    """Return the packages that a module imports, without those of the standard library."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
        elif isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
    return found - set(sys.stdlib_module_names)


def test_only_the_flower_app_imports_flower_and_only_what_flower_promises() -> None:
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                found = [node.module or ""]
            else:
                found = []
            found += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            theirs = {module for module in found if module.split(".")[0] == "flwr"}
            assert theirs <= (
                {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
                if name.startswith("flower.")
                else set()
            ), name
