"""Who takes part in a run, and what follows from their number: faults borne, quorums, leaders, the run's id."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from fedrfq.consensus.wire import sized, u32
from fedrfq.errors import UserError

MOST_SERVERS = 1000
MOST_CLIENTS = 2**20
MOST_MS = 2**32 - 1
_DOUBLINGS = 6  # a timeout grows to 64 times its start, and no further
_SLOWEST = 4  # a resend waits at most 2⁴ times as long as the first


class Scheme(Protocol):
    """How signatures are checked. A weak key is one for which others could sign too."""

    def verify(self, key: bytes, data: bytes, signature: bytes) -> bool: ...

    def weak(self, key: bytes) -> bool: ...


class Signer(Protocol):
    """Holds one party's private key."""

    def __call__(self, data: bytes) -> bytes: ...


def faults(servers: int) -> int:
    """f: how many of so many servers may crash or lie."""
    return (servers - 1) // 3


def quorum(servers: int) -> int:
    """⌈(n+f+1)/2⌉: two quorums share an honest server, and the honest alone make one. 2f+1 only where n = 3f+1."""
    return (servers + faults(servers) + 2) // 2


def served(server: int, servers: int, clients: int) -> list[int]:
    """The clients a server tells of decisions: each client hears of them from f + 1 servers, so from an honest one."""
    return [client for client in range(clients) if (client - server) % servers <= faults(servers)]


@dataclass(frozen=True)
class Roster:
    """Public keys and agreed settings. Nothing signed for one roster counts in another: its hash is the run's id."""

    scheme: Scheme
    servers: tuple[bytes, ...]
    clients: tuple[bytes, ...]
    purpose: bytes = b""  # what is computed: a digest of the experiment
    minimum: int = 1  # clients a server must hold to close a round at its deadline
    deadline_ms: int = 60_000
    view_ms: int = 2_000
    resend_ms: int = 1_000

    def __post_init__(self) -> None:
        if len(self.servers) in (0, 2, 3) or len(self.servers) > MOST_SERVERS:
            raise UserError(
                f"a committee has 1 server, or 4 to {MOST_SERVERS} (3f + 1 to bear f faults), not {len(self.servers)}"
            )
        if not 1 <= self.minimum <= len(self.clients) <= MOST_CLIENTS:
            raise UserError(
                f"a round needs 1 to all of the {len(self.clients)} clients, not {self.minimum}"
            )
        if not all(1 <= ms <= MOST_MS for ms in (self.deadline_ms, self.view_ms, self.resend_ms)):
            raise UserError(f"deadlines and timeouts are 1 to {MOST_MS} ms")
        keys = self.servers + self.clients
        if len(set(keys)) < len(keys):
            raise UserError("two parties have the same key: each needs its own")
        for number, key in enumerate(keys):
            if self.scheme.weak(key):
                if number < len(self.servers):
                    who = f"server {number}"
                else:
                    who = f"client {number - len(self.servers)}"
                raise UserError(
                    f"the key of {who} is weak, others could sign for it: make a new one"
                )

    @cached_property
    def n(self) -> int:
        return len(self.servers)

    @cached_property
    def f(self) -> int:
        return faults(self.n)

    @cached_property
    def quorum(self) -> int:
        return quorum(self.n)

    @cached_property
    def keys(self) -> dict[int, bytes]:
        """Of servers by their number, of client k by ~k; the client numbers after the last are the servers again."""
        return dict(enumerate(self.servers)) | {
            ~k: key for k, key in enumerate(self.clients + self.servers)
        }

    @cached_property
    def run(self) -> bytes:
        """The run's id."""
        numbers = (
            self.n,
            len(self.clients),
            self.minimum,
            self.deadline_ms,
            self.view_ms,
            self.resend_ms,
        )
        parts = [
            b"fedrfq-1 roster",
            *map(u32, numbers),
            *map(sized, self.servers + self.clients),
            sized(self.purpose),
        ]
        return hashlib.sha256(b"".join(parts)).digest()

    def leader(self, round_: int, view: int) -> int:
        return (round_ + view) % self.n

    def timeout_ms(self, view: int) -> int:
        """How long a view may last before the next is asked for: doubled from view to view, capped."""
        return self.view_ms << min(view, _DOUBLINGS)

    def wait_ms(self, resends: int) -> int:
        """How long to wait before saying again what was said again so often: doubled from time to time, capped."""
        return self.resend_ms << min(resends, _SLOWEST)

    def mover(self, server: int) -> int:
        """The client number by which a server speaks as a client."""
        return len(self.clients) + server

    def person(self, party: int) -> int:
        """Who a party is: of a mover ~(K + s) server s, of all others themselves."""
        server = ~party - len(self.clients)
        if 0 <= server < self.n:
            return server
        return party

    def key(self, party: int) -> bytes | None:
        """Of a party, none of a stranger."""
        return self.keys.get(party)
