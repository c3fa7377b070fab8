"""How a result was made: by which command, of which revision, on which device and data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedrfq.runs.run_directory import RunDirectory
from fedrfq.runs.session import here


def made(command: str, runs: Sequence[RunDirectory]) -> dict[str, Any]:
    """From what the runs recorded when they began; of what is computed without runs, from here and now."""
    found = [run.environment() for run in runs] or [here()]
    data = {
        entry["data"]["name"]: entry["data"].get("sha256") for entry in found if entry.get("data")
    }
    return {
        "command": command,
        "runs": len(runs),
        "revision": _distinct(entry.get("revision") for entry in found),
        "device": _distinct(entry.get("device") for entry in found),
        "torch": _distinct(entry.get("versions", {}).get("torch") for entry in found),
        "data": data,
    }


def _distinct(values: Any) -> list[str]:
    return sorted({str(value) for value in values if value})


def words(how: Mapping[str, Any]) -> str:
    revision = ", ".join(how["revision"]) or "unknown"
    device = ", ".join(how["device"])
    data = "".join(f"; {name} {str(digest)[:12]}" for name, digest in how["data"].items())
    return (
        f"`{how['command']}`; revision {revision}; {device}; torch {', '.join(how['torch'])}{data}"
    )
