"""The version of the decisions: of all that servers compute from the same uploads and memory.

Servers that compute anything else never agree with each other, and nothing else would tell them
why. So federation.toml names the version, which makes it a part of the run's id, and a server whose
program has another one does not start.

A program decides by one version. It reads the files of others, and checks their certificates, but
computes nothing anew by them. A federation goes on to the next version by a change (`fedrfq
committee change --decisions`): the release that has it makes the file, servers of the release
before approve it, and when it is decided they stop until they have the newer program.
"""

from __future__ import annotations

from fedrfq.errors import UserError

# tests/bench/test_digests.py pins the bytes that a version stands for, and says when it changes.
VERSION = 1


def check(version: int, where: str, hint: str = "") -> None:
    """Raise UserError unless this program decides by the version that a file names."""
    if version != VERSION:
        raise UserError(f"{where} names {other(version)}{hint}")


def check_server(version: int, where: str) -> None:
    """Raise UserError unless a server with this program can decide as its federation.toml says."""
    hint = ""
    if version < VERSION:
        # Only a newer program can make the file by which the others go on.
        hint = f"; `fedrfq committee change DIR --decisions {VERSION}` lets all go on with this one"
    check(version, where, hint)


def other(version: int) -> str:
    """Say of a version that is not this program's what it is, and what to do."""
    return (
        f"version {version} of the decisions, but this program decides by version {VERSION}: use"
        f" the release of fedrfq that decides by version {version}"
    )
