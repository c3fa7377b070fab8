"""Ask the parties on this machine for their status, over their loopback ports."""

from __future__ import annotations

import http.client
import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from fedrfq.errors import UserError
from fedrfq.node.membership.identity import read_federation, read_member
from fedrfq.node.ops.client_status import ClientStatus
from fedrfq.node.ops.doctor import not_founded
from fedrfq.node.ops.status import ServerStatus
from fedrfq.node.ops.web import HOST
from fedrfq.node.storage.party_folder import FEDERATION, STATUS, VOTE_KEY, read_text

_TIMEOUT_S = 5.0
# A status file names a port and a process; the page may name thousands of clients.
_MAX_FILE_BYTES = 1 << 10
_MAX_PAGE_BYTES = 1 << 26


def parties(folder: Path) -> list[tuple[Path, str]]:
    """Return the folder itself if it is a server's or client's, or all of those in it.

    Each comes with its role.
    """
    if (folder / VOTE_KEY).exists():
        if not (folder / FEDERATION).exists():
            raise UserError(f"{folder}: {not_founded(folder)}")
        member, role = read_member(folder)
        if role == "courier":
            raise UserError(
                f"{folder} belongs to {member.name}, a courier, which has no status: "
                "look at its log, or name the folder of a server or client"
            )
        return [(folder, role)]
    if not (folder / FEDERATION).exists():
        return _parties_below(folder)
    federation = read_federation(folder / FEDERATION)
    # Other parties of the federation may be on other machines.
    return [
        (folder / member.name, federation.role(party))
        for party, member in federation.members.items()
        if federation.role(party) != "courier" and (folder / member.name).is_dir()
    ]


def _parties_below(folder: Path) -> list[tuple[Path, str]]:
    """Return the parties whose folders are in this one, of whatever federations."""
    below = sorted(key.parent for key in folder.glob(f"*/{VOTE_KEY}"))
    if not below:
        raise UserError(
            f"{folder} is neither the folder of a server or client nor one with such folders in it:"
            " check the path"
        )
    founded = [party for party in below if (party / FEDERATION).exists()]
    if not founded:
        raise UserError(f"{below[0]}: {not_founded(below[0])}")
    roles = [(party, read_member(party)[1]) for party in founded]
    return [(party, role) for party, role in roles if role != "courier"]


def ask(folder: Path) -> dict[str, Any] | None:
    """Return the status of the party of this folder, or None if it does not answer.

    Raises a UserError if it runs another version of this program.
    """
    try:
        port = int(json.loads(read_text(folder / STATUS, _MAX_FILE_BYTES))["port"])
        status = _page(port)
    except (UserError, OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        # A party that was killed leaves its file, so all of these mean that none is running.
        return None
    kind = ServerStatus if "view" in status else ClientStatus
    # What a field has a default for, releases before it do not report.
    needed = {
        field.name
        for field in fields(kind)
        if field.default is MISSING and field.default_factory is MISSING
    }
    if not status.keys() >= needed:
        raise UserError(
            f"the party of {folder} runs another version of this program: restart it with this one"
        )
    return status


def _page(port: int) -> dict[str, Any]:
    connection = http.client.HTTPConnection(HOST, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/status")
        status = json.loads(connection.getresponse().read(_MAX_PAGE_BYTES))
    finally:
        connection.close()
    if not isinstance(status, dict) or "run" not in status:
        raise ValueError("another program has this port now")
    return status
