"""A federation that is founded anew before its first round, and a party that had agreed already.

What the party has of the federation before is set aside in its folder, by the run's id. It comes
back if the founder goes back to that federation: a server must never join a run again without the
log of what it signed in it.
"""

from __future__ import annotations

import os
from pathlib import Path

from fedrfq.errors import UserError
from fedrfq.federation.federation_file import Federation
from fedrfq.files.atomic import reporting_write_errors, sync_folder
from fedrfq.node.membership import epochs
from fedrfq.node.membership.identity import read_federation
from fedrfq.node.storage import audit_writer, log_reader
from fedrfq.node.storage.party_folder import FEDERATION, make_folder
from fedrfq.node.storage.write_ahead_log import locked

ASIDE = "set-aside"
# Digits of the run's id in the name of the folder that has what was set aside.
_DIGITS = 16
# What federation.toml is called while the rest is set aside. Nobody can be started with such a
# folder: a server that had its federation, and not its log, would vote again.
_LEAVING = f"{FEDERATION}.leaving"
_MOVED = (
    log_reader.FOLDER,
    "log.damaged-*",
    f"{audit_writer.LOG}*",
    f"{audit_writer.BODIES}*",
    epochs.PROPOSAL,
    # A model of another contract would have another shape.
    "model",
)


def has_agreed(folder: Path, shared: Path) -> bool:
    """Return whether the party of this folder has agreed to the federation of the shared folder.

    A federation that was removed there, or replaced by a new one, counts as long as it has
    certified no round; `set_aside` then makes room for the next.
    """
    # A crash may have interrupted a change, and left the folder without its federation.toml.
    epochs.complete_activation(folder)
    if not (folder / FEDERATION).exists():
        return False
    own = read_federation(folder / FEDERATION)
    if not (shared / FEDERATION).exists():
        # The folder may be gone once it has done its work; in one that is there, a file is awaited.
        return not shared.is_dir() or _has_certified(folder, own)
    founded = read_federation(shared / FEDERATION)
    assert founded.network is not None
    # A file that follows another was not founded: the servers agreed on it.
    if founded.network.follows or founded.roster.run in _runs(folder, own):
        return True
    if _has_certified(folder, own):
        raise UserError(
            f"{folder} takes part in the run {own.roster.run.hex()[:_DIGITS]}…, which has certified"
            f" rounds, and {shared / FEDERATION} is another federation: start it without --join,"
            " or join the other one with a folder of its own"
        )
    return False


def set_aside(folder: Path) -> Path | None:
    """Set aside what the party has of a federation that it agreed to; return where that is.

    None if it has agreed to none. Nothing is ever removed. What a crash has interrupted is finished
    by the next call.
    """
    leaving = folder / _LEAVING
    if not leaving.exists() and not (folder / FEDERATION).exists():
        return None
    # A party that runs must not lose its log.
    lock = locked(folder)
    try:
        with reporting_write_errors(folder):
            if not leaving.exists():
                (folder / FEDERATION).rename(leaving)
                sync_folder(folder)
            aside = _place(folder, read_federation(leaving))
            make_folder(aside, 0o700)
            for pattern in _MOVED:
                for path in sorted(folder.glob(pattern)):
                    path.rename(aside / path.name)
            sync_folder(aside)
            leaving.rename(aside / FEDERATION)
            sync_folder(folder)
    finally:
        os.close(lock)
    return aside


def take_back(folder: Path, federation: Federation) -> None:
    """Put back what was set aside of this federation, if anything was."""
    aside = _place(folder, federation)
    if not aside.exists():
        return
    with reporting_write_errors(folder):
        # federation.toml last: without it nobody starts with a part of the rest.
        for path in sorted(aside.iterdir(), key=lambda path: path.name == FEDERATION):
            sync_folder(folder)
            path.rename(folder / path.name)
        sync_folder(folder)
        aside.rmdir()


def _place(folder: Path, federation: Federation) -> Path:
    return folder / ASIDE / federation.roster.run.hex()[:_DIGITS]


def _runs(folder: Path, own: Federation) -> set[bytes]:
    """Return the ids of the present run and of those before it."""
    return {own.roster.run} | {run.federation.roster.run for run in epochs.ended_epochs(folder)}


def _has_certified(folder: Path, own: Federation) -> bool:
    """Return whether the party knows of a certified round, in this run or in those before."""
    assert own.network is not None
    audit = folder / audit_writer.LOG
    if own.network.follows or (audit.exists() and audit.stat().st_size):
        return True
    messages = log_reader.load(folder / log_reader.FOLDER, own.roster.run).messages
    return bool(audit_writer.commit_certificates(messages))
