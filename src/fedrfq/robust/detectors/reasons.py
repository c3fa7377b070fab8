"""Why an upload of a class counts for less: a number that servers agree on, and words for people.

A reason is a code in the lowest eight bits. Some reasons name another class, the rival: its number
plus 1 is in the bits above.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from fedrfq.prototypes.fixed_point import Ints
from fedrfq.robust.centres import FULL

_CODE_BITS = 8
# Classes that are named before the rest is only counted.
_MAX_NAMED = 8


class Reason(IntEnum):
    """The codes; 0 is that of uploads that count in full, and of classes not sent."""

    NONE = 0
    FAR = 1
    TOWARD = 2
    LEANING = 3
    FARTHEST = 4
    RECORD = 5
    ALONE = 6
    COUNT = 7
    FEW_HOLDERS = 8
    SAMPLING = 9
    OTHER_CLASS = 10
    OTHER = 11
    ON_TOP = 12


# What an operator reads after "class 3: ". "{rival}" is a class.
_WORDS = {
    Reason.FAR: "far from the other holders",
    Reason.TOWARD: "on the way to class {rival}",
    Reason.LEANING: "leans toward class {rival}",
    Reason.FARTHEST: "its client is among the farthest of the round",
    Reason.RECORD: "its client stood out in earlier rounds",
    Reason.ALONE: "nobody else holds the class",
    Reason.COUNT: "claims more samples than may count",
    Reason.FEW_HOLDERS: "too few others hold the class to compare it with",
    Reason.SAMPLING: "farther off than its number of samples explains",
    Reason.OTHER_CLASS: "another class of its client is why",
    Reason.OTHER: "its client looks odd to the detector",
    Reason.ON_TOP: "nobody else holds the class, and it lies on class {rival}",
}
RIVALLED = frozenset({Reason.TOWARD, Reason.LEANING, Reason.ON_TOP})


def toward(reason: Reason, rival: Ints | int) -> Ints:
    """Return the number of a reason that names a rival class."""
    assert reason in RIVALLED
    number: Ints = (np.asarray(rival, np.int64) + 1 << _CODE_BITS) + int(reason)
    return number


def is_reason(number: int, classes: int) -> bool:
    """Return whether a number stands for a reason: a known code, with a rival if it needs one."""
    rival = number >> _CODE_BITS
    code = number & (1 << _CODE_BITS) - 1
    if code not in _WORDS:
        return False
    if code in RIVALLED:
        return 1 <= rival <= classes
    return rival == 0


def words(number: int, names: Sequence[str] = ()) -> str:
    """Return a reason in words."""
    rival = (number >> _CODE_BITS) - 1
    return _WORDS[Reason(number & (1 << _CODE_BITS) - 1)].format(rival=_name(rival, names))


def explained(weight_J: Ints, reason_J: Ints, names: Sequence[str] = ()) -> str:
    """Return in one line why a client's uploads count for less, and how much; "" if none does.

    Classes of the same reason and weight are named together, those with the least weight first.
    They are named by their numbers where there are no `names`.
    """
    alike: dict[tuple[int, int], list[int]] = {}
    for j in np.flatnonzero(reason_J).tolist():
        alike.setdefault((int(weight_J[j]), int(reason_J[j])), []).append(j)
    lightest_first = sorted(alike, key=lambda key: (key[0], alike[key]))
    lines = [_line(alike[key], *key, names) for key in lightest_first[:_MAX_NAMED]]
    if len(alike) > _MAX_NAMED:
        lines.append(f"and more in {sum(map(len, alike.values()))} classes in all")
    return "; ".join(lines)


def _line(classes: list[int], weight: int, number: int, names: Sequence[str]) -> str:
    line = f"{_named([_name(j, names) for j in classes])}: {words(number, names)}"
    if weight == FULL:
        return line
    return f"{line} (weight {100 * weight // FULL} %)"


def _name(label: int, names: Sequence[str]) -> str:
    if names:
        return names[label]
    return str(label)


def _named(classes: list[str]) -> str:
    """Return classes in words, those beyond the first few only counted."""
    if len(classes) == 1:
        return f"class {classes[0]}"
    text = "classes " + ", ".join(classes[:_MAX_NAMED])
    if len(classes) > _MAX_NAMED:
        text += f" and {len(classes) - _MAX_NAMED} more"
    return text
