"""The versions of the protocol that this program speaks: of its messages, records and logs.

A federation speaks one version, which its federation.toml names. So the version is part of the
run's id, and every message starts with it. A program speaks its own version and the one before it:
programs of two adjacent releases run a federation together at the version of the older one, and go
on to the newer one, once all have it, by a change of the federation. A server that does not speak
the version of a proposed federation does not propose it, so a quorum must have the newer program.
It votes in such rounds all the same, or a proposal could stop the committee.
"""

from __future__ import annotations

from functools import cache

SUPPORTED: tuple[int, ...] = (3,)
LATEST = SUPPORTED[-1]
_TAG = b"fedrfq-"
TAG_BYTES = 8  # enough for versions 0 to 9


@cache
def tag(version: int) -> bytes:
    """Return what a message of this version starts with."""
    return _TAG + b"%d" % version


def version_of(found: bytes) -> int | None:
    """Return the version that a tag names; None if it is no tag of this program."""
    # Not cached: anybody can send any number of tags.
    digits = found[len(_TAG) :]
    if not found.startswith(_TAG) or not digits.isdigit():
        return None
    return int(digits)


def refusal(version: int) -> str | None:
    """Return why this program cannot work with a version, and what to do; None if it can."""
    if version in SUPPORTED:
        return None
    spoken = " and ".join(map(str, SUPPORTED))
    if version > max(SUPPORTED):
        remedy = "install a newer release"
    else:
        remedy = "finish the run, or verify its logs, with the release of fedrfq that wrote them"
    return f"version {version} of the protocol, but this program speaks {spoken}: {remedy}"
