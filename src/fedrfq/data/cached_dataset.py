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
from fedrfq.plugins.known import owner_of

NOTE_LIMIT = 1 << 20


def path(name: str) -> Path:
    """Return where the dataset is stored, or would be."""
    return folder() / f"{name}.npz"


def write(name: str, content: Content, origin: str, plugin: str = "") -> Path:
    """Store the content and then its note, each atomically; return the path of the content.

    `plugin` is the hash of the plugin whose code made the content, if one did.
    """
    _check_pixels(name, content)
    # The arrays come first: a note alone would claim a dataset that is not there.
    target = ensure_folder() / f"{name}.npz"
    arrays = {key: value for key, value in vars(content).items() if value is not None}
    with replacing(target) as file:
        np.savez(file, **{**arrays, "classes": np.array(content.classes)})
    with replacing(target.with_suffix(".json")) as file:
        file.write(json.dumps(_note(name, content, origin, plugin), indent=1).encode())
    return target


def _check_pixels(name: str, content: Content) -> None:
    """Refuse at once what could not be read back."""
    for part in ("train_x", "test_x"):
        found = getattr(content, part).dtype
        if found != np.uint8:
            raise UserError(
                f"{name}: expected {part} as uint8, whole numbers 0 to 255, found {found}; "
                "its Source must scale, round and convert them, and say what stands for NaN"
            )


def _note(name: str, content: Content, origin: str, plugin: str) -> dict[str, Any]:
    made_by = {"plugin": plugin} if plugin else {}
    return {
        **made_by,
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
    remedy = f"run: fedrfq data get {source.name}{_plugin_option(source)}"
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


def is_outdated(source: Source) -> bool:
    """Return whether a plugin that has changed since, or nobody yet, made what is stored."""
    if not path(source.name).is_file():
        return True
    plugin = owner_of(source)
    made_by = note(source.name).get("plugin")
    return plugin is not None and made_by is not None and made_by != plugin.sha256


def _plugin_option(source: Source) -> str:
    plugin = owner_of(source)
    # An installed package is found by itself.
    if plugin is None or not plugin.name.endswith(".py"):
        return ""
    return f" --plugin {plugin.name}"


def check(content: Content, expected: str, what: str, remedy: str) -> None:
    """Raise UserError if the content does not have the expected hash."""
    found = sha256(content)
    if found != expected:
        raise UserError(f"{what}: expected content sha256 {expected}, found {found}; {remedy}")
