"""Who signs for a client: the process of its folder, or a node that hosts it among others. It is one of them for the whole
run, and a node with one state: two that do not know of each other would sign two uploads of one round."""

from __future__ import annotations

import os
from pathlib import Path

from fedrfq.errors import UserError
from fedrfq.node.storage.party_folder import read_text, write

HOSTED = (
    "hosted"  # in a client's folder: where, seen from there, the node that hosts it keeps its state
)
_MOST = 1 << 14


def claim(folder: Path, state: Path) -> None:
    """The client of this folder is hosted from now on, with this state; UserError if it is already, with another."""
    if not hosted(folder, state):
        write(folder / HOSTED, f"{_seen_from(folder, state)}\n".encode())


def hosted(folder: Path, state: Path) -> bool:
    """Whether the client of this folder is hosted with this state already; UserError if it is with another."""
    path = folder / HOSTED
    if not path.exists():
        return False
    if (found := read_text(path, _MOST).removesuffix("\n")) != _seen_from(folder, state):
        raise UserError(
            f"{folder} is hosted with its state in {(folder / found).resolve()}, not in {state}: name that as state, or it "
            f"might sign two uploads of one round"
        )
    return True


def _seen_from(folder: Path, state: Path) -> str:
    return os.path.relpath(state.resolve(), folder.resolve())


def check_own(folder: Path) -> None:
    """That no node hosts the client of this folder."""
    path = folder / HOSTED
    if path.exists():
        raise UserError(
            f"{folder} is hosted by a Flower node: go on there, or it might sign two uploads of one round; once that run is "
            f"over, remove {path}"
        )
