"""A dataset in the cache: NAME.npz has its arrays, NAME.json its hash, origin and counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedrfq.data import array_file
from fedrfq.data.archives import read_file
from fedrfq.data.cache import ensure_folder, folder, replacing
from fedrfq.data.content import Content, sha256
from fedrfq.data.source import Source
from fedrfq.errors import UserError

NOTE_LIMIT = 1 << 20


def path(name: str) -> Path:
    """Return where the dataset is stored, or would be."""
    return folder() / f"{name}.npz"


def write(name: str, content: Content, origin: str) -> Path:
    """Store the content and then its note, each atomically; return the path of the content."""
    # The arrays come first: a note alone would claim a dataset that is not there.
    target = ensure_folder() / f"{name}.npz"
    arrays = {key: value for key, value in vars(content).items() if value is not None}
    with replacing(target) as file:
        np.savez(file, **{**arrays, "classes": np.array(content.classes)})
    with replacing(target.with_suffix(".json")) as file:
        file.write(json.dumps(_note(name, content, origin), indent=1).encode())
    return target


def _note(name: str, content: Content, origin: str) -> dict[str, Any]:
    return {
        "name": name,
        "sha256": sha256(content),
        "source": origin,
        "train": len(content.train_y),
        "test": len(content.test_y),
        "classes": len(content.classes),
    }


def note(name: str) -> dict[str, Any]:
    """Return the note beside the dataset, or {} where there is no readable one."""
    try:
        value = json.loads(read_file(path(name).with_suffix(".json"), NOTE_LIMIT))
    except (UserError, OSError, ValueError, RecursionError):
        return {}
    if isinstance(value, dict):
        return value
    return {}


def count(name: str) -> int:
    """Return how many images the note states; 0 where it states none."""
    stated = [note(name).get(part) for part in ("train", "test")]
    return sum(number for number in stated if isinstance(number, int))


def read(source: Source) -> Content:
    """Return the stored content, checked against its hash.

    The hash is the one pinned in the source or, where there is none, the one in the note.
    """
    remedy = f"run: fedrfq data get {source.name}"
    file = path(source.name)
    if not file.is_file():
        raise UserError(f"{source.name} is not in the cache: expected {file}, found none; {remedy}")
    expected = source.sha256 or note(source.name).get("sha256")
    if expected is None:
        beside = file.with_suffix(".json")
        raise UserError(f"{beside}: expected the dataset's hash in it, found none; {remedy}")
    try:
        content = array_file.read(file)
    # A damaged cache is not the user's file to fix; fetching it again is the remedy.
    except UserError as error:
        raise UserError(f"{error}; {remedy}") from error
    check(content, str(expected), str(file), remedy)
    return content


def check(content: Content, expected: str, what: str, remedy: str) -> None:
    """Raise UserError if the content does not have the expected hash."""
    found = sha256(content)
    if found != expected:
        raise UserError(f"{what}: expected content sha256 {expected}, found {found}; {remedy}")
