"""The names of classes: how many there may be, and what a name may look like."""

from __future__ import annotations

from collections import Counter

from fedrfq.errors import UserError

# Bounds the memory that labels from a hostile file can ask for.
MAX_CLASSES = 10_000


def check_class_names(classes: tuple[str, ...], what: str, least: int = 2) -> None:
    """Check that there are enough classes, and that their names are distinct and printable."""
    if not least <= len(classes) <= MAX_CLASSES:
        raise UserError(
            f"{what}: expected {least} to {MAX_CLASSES} classes, found {len(classes)};"
            " check the labels"
        )
    if len(set(classes)) != len(classes):
        ((repeated, _),) = Counter(classes).most_common(1)
        raise UserError(
            f"{what}: expected distinct class names, found {repeated!r:.120} twice; "
            "rename one of the classes"
        )
    for name in classes:
        if not name.isprintable() or not 0 < len(name) <= 100:
            raise UserError(
                f"{what}: expected printable class names of 1 to 100 characters, "
                f"found {name!r:.120}; rename that class"
            )
