"""Provenance: by which command, revision, device and data a result was made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedrfq.runs.run_directory import RunDirectory
from fedrfq.runs.session import here


def provenance(command: str, runs: Sequence[RunDirectory]) -> dict[str, Any]:
    """Return how a result was made, from what its runs recorded when they began.

    A result that is computed without runs was made here and now.
    """
    # Runs of several revisions or devices may stand side by side in one result: all are named.
    environments = [run.environment() for run in runs] or [here()]
    datasets = [environment["data"] for environment in environments if environment.get("data")]
    return {
        "command": command,
        "runs": len(runs),
        "revision": _distinct(environment.get("revision") for environment in environments),
        "device": _distinct(environment.get("device") for environment in environments),
        "torch": _distinct(
            environment.get("versions", {}).get("torch") for environment in environments
        ),
        "data": {dataset["name"]: dataset.get("sha256") for dataset in datasets},
    }


def _distinct(values: Iterable[Any]) -> list[str]:
    return sorted({str(value) for value in values if value})


def describe(how: Mapping[str, Any]) -> str:
    """Describe in one line how a result was made."""
    parts = [
        f"`{how['command']}`",
        f"revision {', '.join(how['revision']) or 'unknown'}",
        ", ".join(how["device"]),
        f"torch {', '.join(how['torch'])}",
    ]
    parts += [f"{name} {str(digest)[:12]}" for name, digest in how["data"].items()]
    return "; ".join(parts)
