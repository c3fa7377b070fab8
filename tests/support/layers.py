"""The layers of the package: who may import whom, and a diagram of who does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import fedrfq

ROOT = Path(fedrfq.__file__).parent
# From low to high: a module imports from its own package or a lower one. The longest name that
# fits counts, so that a package's rooms have places of their own.
LAYERS = [
    "errors",
    "files",
    "plugins",
    "data",
    "prototypes",
    "robust.state",
    "robust.centres",
    "robust.distances",
    "robust.honest_noise",
    "robust.rules",
    "robust.detectors",
    "robust.example_rounds",
    "robust.exactness",
    "robust.attacks",
    "robust",
    "privacy",
    "consensus",
    "federation",
    "audit",
    "simulator",
    "simulator.fuzz",
    "committee",
    "models",
    "models.fused",
    "models.public_maps",
    "methods",
    "engine",
    "experiment",
    "learning.public",
    "learning",
    "node.logs",
    "node.storage",
    "node.membership",
    "node.transport",
    "node.driver",
    "node.ops",
    "node",
    "runs",
    "leakage",
    "studies",
    "paper",
    "report",
    "flower",
    "api.contracts",
    "api",
    "cli",
]


def layer(module: str) -> int:
    """Return the place of a module: that of the longest name in LAYERS that it belongs to."""
    homes = [name for name in LAYERS if module == name or module.startswith(f"{name}.")]
    assert homes, f"{module} has no place in LAYERS: give its package one"
    return LAYERS.index(max(homes, key=len))


def modules() -> dict[str, Path]:
    """Return all modules of the package, by their names without `fedrfq.`.

    Left out are the package itself and what starts the program, `python -m fedrfq`.
    """
    names = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        names[".".join(parts)] = path
    del names[""], names["__main__"]
    return names


def imports(path: Path, known: set[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines in which a module imports another of the package, and that one's name.

    Imports inside functions count as well.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: imports are absolute here"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "fedrfq":
                inner = name.removeprefix("fedrfq").removeprefix(".")
                if inner not in known:
                    inner = inner.rpartition(".")[0]
                yield node.lineno, inner


def needs() -> dict[str, set[str]]:
    """Return for each top-level package those that it imports."""
    found = modules()
    packages: dict[str, set[str]] = {}
    for name, path in found.items():
        package = name.split(".")[0]
        wanted = {other.split(".")[0] for _, other in imports(path, set(found)) if other}
        packages.setdefault(package, set()).update(wanted - {package})
    return packages


def diagram() -> str:
    """Draw the top-level packages as a Mermaid chart, an arrow from each to those it builds on.

    What follows from other arrows is left out, and so is `errors`, which everyone imports.
    """
    packages = {name: wanted - {"errors"} for name, wanted in needs().items() if name != "errors"}
    reach = {name: _reach(name, packages) for name in packages}
    lines = ["flowchart TD"]
    for name in sorted(packages, key=layer, reverse=True):
        for other in sorted(packages[name], key=layer, reverse=True):
            if not any(other in reach[between] for between in packages[name]):
                lines.append(f"    {name} --> {other}")
    return "\n".join(lines)


def _reach(name: str, packages: dict[str, set[str]]) -> set[str]:
    """Return all packages that one imports, directly or through others."""
    found: set[str] = set()
    waiting = list(packages[name])
    while waiting:
        other = waiting.pop()
        if other not in found:
            found.add(other)
            waiting.extend(packages[other])
    return found
