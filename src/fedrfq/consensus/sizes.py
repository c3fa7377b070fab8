"""How large an honest message of each kind can be, given who takes part."""

from __future__ import annotations

from fedrfq.consensus.records import DIGEST, SIGNATURE, Kind
from fedrfq.consensus.roster import MAX_CLIENTS, MAX_SERVERS, Roster
from fedrfq.consensus.wire import Sizes

# Lengths are u32 on the wire.
MAX_CONTENT = 2**32 - 1

# Bytes of what messages are made of.
_HEADER = 45  # tag, kind, run, round
_LENGTH = 4  # of what follows, or the number of items
_VIEW_AND_SERVER = 6
_ENTRY = 4 + DIGEST
_RECORD = 4 + 7 * DIGEST
_VOTE = _VIEW_AND_SERVER + DIGEST
_RECEIPT = 2 + _ENTRY


def sizes_of(roster: Roster, upload: int = MAX_CONTENT) -> Sizes:
    """Return the largest sizes of the messages of a run.

    `upload` is the most bytes that a client's upload or a server's change proposal can have.
    """
    return _max_sizes(roster.n, len(roster.clients), upload)


def _max_sizes(servers: int, clients: int, upload: int) -> Sizes:
    # A client or server with two entries in a list has lied already: no list has more of them.
    entries = 2 * (clients + servers)
    certificate = 1 + 4 + _RECORD + _LENGTH + servers * (2 + SIGNATURE)
    upload_list = _signed(2 + 2 * _LENGTH + entries * _ENTRY)
    change = _signed(_VIEW_AND_SERVER + 2 * (1 + certificate))
    # A proposal carries lists and view changes, each after its length.
    carried = 2 * _LENGTH + servers * (_LENGTH + upload_list) + servers * (_LENGTH + change)
    by_kind: dict[int, int] = {
        Kind.UPLOAD: _signed(4 + _LENGTH + upload),
        Kind.RECEIPT: _signed(_RECEIPT),
        Kind.LIST: upload_list,
        Kind.PREPREPARE: _signed(_VIEW_AND_SERVER + _RECORD + carried),
        Kind.PREPARE: _signed(_VOTE),
        Kind.COMMIT: _signed(_VOTE),
        Kind.VIEWCHANGE: change,
        Kind.PROPOSAL: _signed(2 + _LENGTH + upload),
    }
    by_kind[Kind.EVIDENCE] = _HEADER + 2 * (_LENGTH + max(by_kind.values()))
    by_kind[Kind.CERT] = _HEADER + certificate
    by_kind[Kind.FETCH] = _HEADER + 1 + DIGEST
    # The content of a part is not read before its digest shows that somebody asked for it.
    by_kind[Kind.BODY] = _HEADER + 1 + _LENGTH + MAX_CONTENT
    return Sizes(servers, entries, by_kind)


def _signed(body: int) -> int:
    """Return the bytes of a signed message with a body of so many bytes."""
    return _HEADER + body + SIGNATURE


# Those of the largest federation that can be: for bytes of which nobody knows whose they are.
LARGEST = _max_sizes(MAX_SERVERS, MAX_CLIENTS, MAX_CONTENT)
