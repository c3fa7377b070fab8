"""What servers of this machine say of themselves, asked over their loopback ports."""

from __future__ import annotations

import http.client
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedrfq.errors import UserError
from fedrfq.node.membership.identity import read_federation, read_member
from fedrfq.node.ops.status import ServerStatus
from fedrfq.node.ops.web import HOST
from fedrfq.node.storage.party_folder import FEDERATION, STATUS, VOTE_KEY, read_text

_PATIENCE_S = 5.0
# bytes
_MOST_STATUS = 1 << 10
_MOST_PAGE = 1 << 26


def servers(folder: Path) -> list[Path]:
    """The servers' folders: this one, or those in it where it is a federation's."""
    if (folder / VOTE_KEY).exists():
        member, role = read_member(folder)
        if role != "server":
            raise UserError(
                f"{folder} is of {member.name}, a {role}: only servers have a status, what a {role} does is in its log"
            )
        return [folder]
    if not (folder / FEDERATION).exists():
        raise UserError(f"{folder} is neither a server's folder nor a federation's")
    members = read_federation(folder / FEDERATION).members
    return [
        folder / member.name
        for party, member in members.items()
        if party >= 0 and (folder / member.name).is_dir()
    ]


def ask(folder: Path) -> dict[str, Any] | None:
    """A server's board; none where no server runs. UserError where it is of another version."""
    try:
        port = int(json.loads(read_text(folder / STATUS, _MOST_STATUS))["port"])
        found = _page(port)
    except (UserError, OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return None
    if not found.keys() >= {field.name for field in fields(ServerStatus)}:
        raise UserError(
            f"the server of {folder} runs another version of this program: restart it with this one"
        )
    return found


def _page(port: int) -> dict[str, Any]:
    connection = http.client.HTTPConnection(HOST, port, timeout=_PATIENCE_S)
    try:
        connection.request("GET", "/status")
        found = json.loads(connection.getresponse().read(_MOST_PAGE))
    finally:
        connection.close()
    if not isinstance(found, dict) or "run" not in found:
        raise ValueError("another program has this port now")
    return found
