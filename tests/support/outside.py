"""Plugins in tests: files to give, and what a new process would know of them."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

from fedrfq.plugins import REGISTRIES, files, known, packages

PULL = """
from dataclasses import dataclass
import fedrfq
from fedrfq.methods.fedproto import FedProto

@fedrfq.register("method", "pull")
@dataclass(frozen=True)
class Pull(FedProto):
    def distance(self, difference_KBV):
        return difference_KBV.abs().mean(-1)
"""
LARGEST = """
from dataclasses import dataclass
from typing import ClassVar
import numpy as np
import fedrfq
from fedrfq.robust.detectors import Detector, Verdict

@fedrfq.register("detector", "largest")
@dataclass(frozen=True)
class Largest(Detector):
    exact: ClassVar[bool] = True
    def judge(self, state, globals_, uploads):
        claimed_K = uploads.counts_KJ.sum(1)
        kept_K = np.ones(len(claimed_K), np.bool_)
        kept_K[np.lexsort((np.array(uploads.clients), -claimed_K))[:1]] = False
        return state, Verdict.of_kept(uploads, kept_K, claimed_K)
"""


def written(folder: Path, name: str, text: str) -> Path:
    """Write a plugin file and return its path."""
    path = folder / name
    path.write_text(text)
    return path


def typed(text: str, scope: dict[str, Any]) -> None:
    """Run a cell as a notebook does, which keeps the text of its cells and has no file."""
    name = f"ipykernel_1/{len(linecache.cache)}.py"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec", dont_inherit=True), scope)


def new_process() -> None:
    """Forget all plugins, as a new process knows none; what the user's folder remembers stays."""
    for kind, name in known.OWNERS:
        del REGISTRIES[kind].entries()[name]
    for state in (known.OWNERS, known.LOADED, known.GIVEN, packages.BROKEN):
        state.clear()
    files.FILES.clear()
    packages.installed.cache_clear()
    packages.load_installed.cache_clear()
