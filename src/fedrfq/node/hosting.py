"""Decides who signs for a client: the process of its folder, or a node that hosts it with others.

It is one of them for the whole run, and a node with a single state: two signers that do not know of
each other would sign two uploads of one round, and so convict the client.
"""

from __future__ import annotations

import os
from pathlib import Path

from fedrfq.errors import UserError
from fedrfq.node.storage.party_folder import read_text, write

# A file in a client's folder. It holds the path, relative to that folder, where the node that hosts
# the client keeps its state; a relative path survives moving both together.
HOSTED = "hosted"
_MAX_BYTES = 1 << 14


def claim(folder: Path, state: Path) -> None:
    """Host the client of this folder with this state; raise UserError if another state does."""
    if not hosted(folder, state):
        write(folder / HOSTED, f"{_relative(folder, state)}\n".encode())


def hosted(folder: Path, state: Path) -> bool:
    """Tell whether the client is hosted with this state; raise UserError if another state does."""
    path = folder / HOSTED
    if not path.exists():
        return False
    recorded = read_text(path, _MAX_BYTES).removesuffix("\n")
    if recorded != _relative(folder, state):
        raise UserError(
            f"{folder} is hosted with its state in {(folder / recorded).resolve()}:"
            f" name that as state, not {state}, or the client might sign two uploads of one round"
        )
    return True


def _relative(folder: Path, state: Path) -> str:
    return os.path.relpath(state.resolve(), folder.resolve())


def check_own(folder: Path) -> None:
    """Raise UserError if a node hosts the client of this folder."""
    path = folder / HOSTED
    if path.exists():
        raise UserError(
            f"{folder} is hosted by a Flower node: go on there, or the client might sign two"
            f" uploads of one round; once that run is over, remove {path}"
        )
