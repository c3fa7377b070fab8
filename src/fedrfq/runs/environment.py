"""What a run's environment.json records: the program, the machine, the data and the partition."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from fedrfq.data import Dataset
from fedrfq.learning.round_loop import RoundLoop
from fedrfq.runs.run_directory import RunDirectory

_PACKAGES = ("fedrfq", "torch", "numpy", "scikit-learn", "mlxtend")


def environment(loop: RoundLoop, r: int) -> dict[str, Any]:
    """Return the environment of the loop's run number `r`."""
    device = loop.trains_on
    is_cuda = device.type == "cuda"
    return {
        **here(),
        "device": _hardware(device),
        "device_type": device.type,
        "threads": torch.get_num_threads(),
        # On the CPU, kernels are deterministic for a given number of threads.
        "deterministic": not is_cuda or torch.are_deterministic_algorithms_enabled(),
        "data": described(loop.dataset),
        "partition": loop.partitions[r].realised,
    }


def here() -> dict[str, Any]:
    """Return the versions of the program and its packages, and the machine."""
    versions = {name: _version(name) for name in _PACKAGES}
    return {
        "versions": {"python": platform.python_version(), **versions},
        "platform": platform.platform(),
        "device": _hardware(torch.device("cpu")),
        "revision": _revision(),
    }


def described(dataset: Dataset) -> dict[str, Any]:
    """Return what a trained model needs to know about its data to be used without them."""
    return {
        "name": dataset.name,
        "sha256": dataset.sha256,
        "origin": dataset.origin or "given as Python objects: give the same again to resume",
        "classes": list(dataset.classes),
        "shape": list(dataset.shape),
        "dtype": str(dataset.train_x.dtype),
        "mean": list(dataset.mean),
        "std": list(dataset.std),
    }


def differences(run: RunDirectory, device: torch.device) -> list[str]:
    """Return what has changed since the run began and may change the last bits of its results."""
    recorded = run.environment()
    then = {
        "torch": recorded["versions"].get("torch"),
        "device": recorded.get("device"),
        "threads": recorded.get("threads"),
    }
    now = {
        "torch": _version("torch"),
        "device": _hardware(device),
        "threads": torch.get_num_threads(),
    }
    return [f"{key} {then[key]} → {now[key]}" for key in now if then[key] != now[key]]


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# Cached: asking git takes a while, and the answer does not change.
@cache
def _revision() -> str | None:
    """Return the git revision of the program's checkout, with "+" where files differ from it.

    None where the program does not run from a checkout.
    """
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty=+"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None
