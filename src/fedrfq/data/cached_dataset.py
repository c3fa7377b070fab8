"""A dataset in the cache: NAME.npz with its arrays and NAME.json with its hash, its origin and its counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedrfq.data import array_file
from fedrfq.data.archives import read_file
from fedrfq.data.cache import folder, made_folder, replacing
from fedrfq.data.content import Content, sha256
from fedrfq.data.source import Source
from fedrfq.errors import UserError

NOTE_LIMIT = 1 << 20


def path(name: str) -> Path:
    """Where the dataset is, or would be."""
    return folder() / f"{name}.npz"


def write(name: str, content: Content, origin: str) -> Path:
    """Store the content, then its note; each file appears whole or not at all."""
    target = made_folder() / f"{name}.npz"
    named = {key: value for key, value in vars(content).items() if value is not None}
    with replacing(target) as file:
        np.savez(file, **{**named, "classes": np.array(content.classes)})
    with replacing(target.with_suffix(".json")) as file:
        file.write(json.dumps(_note(name, content, origin), indent=1).encode())
    return target


def _note(name: str, content: Content, origin: str) -> dict[str, Any]:
    counts = {
        "train": len(content.train_y),
        "test": len(content.test_y),
        "classes": len(content.classes),
    }
    return {"name": name, "sha256": sha256(content), "source": origin, **counts}


def note(name: str) -> dict[str, Any]:
    """The note beside the dataset, or {} where there is none that can be read."""
    beside = path(name).with_suffix(".json")
    try:
        found = json.loads(read_file(beside, NOTE_LIMIT))
    except (UserError, OSError, ValueError, RecursionError):
        return {}
    if isinstance(found, dict):
        return found
    return {}


def count(name: str) -> int:
    """How many images the note states; 0 where it states none."""
    stated = [note(name).get(part) for part in ("train", "test")]
    return sum(number for number in stated if isinstance(number, int))


def read(source: Source) -> Content:
    """The stored content, checked against the hash pinned in the source or, failing that, in the note."""
    if not path(source.name).is_file():
        raise UserError(
            f"{source.name}: expected {path(source.name)}, found none; run: fedrfq data get {source.name}"
        )
    expected = source.sha256 or note(source.name).get("sha256")
    if expected is None:
        beside = path(source.name).with_suffix(".json")
        raise UserError(
            f"{beside}: expected the dataset's hash in it, found none; run: fedrfq data get {source.name}"
        )
    try:
        content = array_file.read(path(source.name))
    except UserError as error:
        raise UserError(f"{error}; run: fedrfq data get {source.name}") from error
    check(content, str(expected), str(path(source.name)), f"run: fedrfq data get {source.name}")
    return content


def check(content: Content, expected: str, what: str, remedy: str) -> None:
    """Refuse content that is not of the expected hash."""
    found = sha256(content)
    if found != expected:
        raise UserError(f"{what}: expected content sha256 {expected}, found {found}; {remedy}")
