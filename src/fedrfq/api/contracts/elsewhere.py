"""Decide the same rounds in another process, which is made as different as it can be here.

It leaves out what this processor can do beyond the least that numpy needs, has another BLAS kernel,
another number of threads and other hashes of strings. What computes on integers notices nothing.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any

import numpy as np

from fedrfq.api.contracts.contract import Broken
from fedrfq.robust.detectors import DETECTORS
from fedrfq.robust.exactness import Part, decided
from fedrfq.robust.rules import RULES

_TIMEOUT_S = 120


def differs_elsewhere(kind: str, name: str, results: Iterable[Any]) -> bool:
    """Return whether a different process comes to other bytes for a detector or a rule."""
    from fedrfq import plugins

    # -P: nothing is to be imported from the current folder.
    command = [sys.executable, "-P", "-m", "fedrfq.api.contracts.elsewhere", kind, name]
    try:
        answer = subprocess.run(
            [*command, *plugins.options()],
            env={**os.environ, **_other_machine()},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Broken(f"another process has no answer after {_TIMEOUT_S} s") from None
    if answer.returncode:
        last = answer.stderr.strip().splitlines()[-1:]
        raise Broken(f"it fails in another process: {''.join(last)}")
    return answer.stdout.strip() != digest(results)


def _other_machine() -> dict[str, str]:
    """Return an environment in which numpy and BLAS take other paths than here."""
    numpy_itself = import_module("numpy._core._multiarray_umath")
    here = numpy_itself.__cpu_features__
    extras = [name for name in numpy_itself.__cpu_dispatch__ if here.get(name)]
    return {
        "NPY_DISABLE_CPU_FEATURES": " ".join(extras),
        "OPENBLAS_CORETYPE": "Prescott",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "4711",
    }


def digest(results: Iterable[Any]) -> str:
    """Return a hash of arrays and numbers, their types and shapes."""
    hashed = hashlib.sha256()
    for result in results:
        array = np.asarray(result)
        hashed.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return hashed.hexdigest()


def main() -> None:
    """Load the plugins that the command names, decide, and print the hash of the results."""
    from fedrfq import plugins

    kind, name, *options = sys.argv[1:]
    for path in options[1::2]:
        plugins.load_plugin(path)
    plugins.load_installed()
    part: Part = RULES[name] if kind == "rule" else DETECTORS[name]()
    print(digest(decided(part)))


if __name__ == "__main__":
    main()
