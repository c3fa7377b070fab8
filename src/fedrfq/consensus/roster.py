"""Who takes part in a run, and what follows from it: quorums, leaders, timeouts, the run's id."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from fedrfq.consensus.protocol import LATEST, refusal, tag
from fedrfq.consensus.wire import sized, u32
from fedrfq.errors import UserError

# Server numbers are u16 on the wire, client numbers and milliseconds u32: these bounds stay within.
MAX_SERVERS = 1000
MAX_CLIENTS = 2**20
MAX_MS = 2**32 - 1
# Doubling adapts to a slow network, and the cap bounds the wait after an outage: a view's timeout
# grows to at most 2⁶ times the first, a resend's to at most 2⁴ times.
_MAX_TIMEOUT_DOUBLINGS = 6
_MAX_RESEND_DOUBLINGS = 4


class Scheme(Protocol):
    """A signature scheme, as far as it takes to check signatures."""

    def verify(self, key: bytes, data: bytes, signature: bytes) -> bool:
        """Return whether this is the key's signature of the data."""
        ...

    def weak(self, key: bytes) -> bool:
        """Return whether others than the key's owner could sign for this public key."""
        ...


class Signer(Protocol):
    """The holder of a party's private key."""

    def __call__(self, data: bytes) -> bytes:
        """Return the party's signature of the data."""
        ...


def faults(servers: int) -> int:
    """Return f, the number of servers that may crash or lie: ⌊(n−1)/3⌋."""
    return (servers - 1) // 3


def quorum(servers: int) -> int:
    """Return the size of a quorum: ⌈(n+f+1)/2⌉.

    Any two quorums share an honest server, and the honest servers alone make up a quorum. The
    paper's 2f+1 is the same only where n = 3f+1, and too small at n = 5, 6, 8, 9, …
    """
    return (servers + faults(servers) + 2) // 2


def served(server: int, servers: int, clients: int) -> list[int]:
    """Return the clients to which a server publishes decisions.

    Each client is served by f + 1 servers, hence by an honest one.
    """
    return [client for client in range(clients) if (client - server) % servers <= faults(servers)]


@dataclass(frozen=True)
class Roster:
    """The public keys and agreed settings of a run.

    Its hash is the run's id, so nothing that is signed for one roster counts in another.
    """

    scheme: Scheme
    servers: tuple[bytes, ...]
    clients: tuple[bytes, ...]
    purpose: bytes = b""  # what is computed: a digest of the experiment
    minimum: int = 1  # clients whose uploads a server needs to close a round at its deadline
    deadline_ms: int = 60_000
    view_ms: int = 2_000
    resend_ms: int = 1_000
    protocol: int = LATEST  # the version of the protocol that all parties speak

    def __post_init__(self) -> None:
        why = refusal(self.protocol)
        if why is not None:
            raise UserError(f"a federation of {why}")
        self._check_numbers()
        self._check_keys()

    def _check_numbers(self) -> None:
        servers = len(self.servers)
        clients = len(self.clients)
        # Two or three servers bear no more faults than one, and need all of them to agree.
        if servers in (0, 2, 3) or servers > MAX_SERVERS:
            raise UserError(
                f"a committee needs 1 server, or 4 to {MAX_SERVERS} (3f + 1 tolerate f faulty"
                f" ones), not {servers}"
            )
        if clients > MAX_CLIENTS:
            raise UserError(f"a federation has at most {MAX_CLIENTS} clients, not {clients}")
        if not 1 <= self.minimum <= clients:
            raise UserError(
                "the minimum must be from 1 to the number of clients, "
                f"{clients}, not {self.minimum}"
            )
        for ms in (self.deadline_ms, self.view_ms, self.resend_ms):
            if not 1 <= ms <= MAX_MS:
                raise UserError(f"deadlines and timeouts must be 1 to {MAX_MS} ms, not {ms}")

    def _check_keys(self) -> None:
        keys = self.servers + self.clients
        if len(set(keys)) < len(keys):
            raise UserError("two parties have the same key: give each its own")
        for number, key in enumerate(keys):
            if self.scheme.weak(key):
                raise UserError(
                    f"the key of {self._describe(number)} is weak, so others could sign for it:"
                    f" generate a new one"
                )

    def _describe(self, number: int) -> str:
        """Name the party at a position among the servers' and clients' keys."""
        if number < self.n:
            return f"server {number}"
        return f"client {number - self.n}"

    @cached_property
    def n(self) -> int:
        """The number of servers."""
        return len(self.servers)

    @cached_property
    def f(self) -> int:
        """The number of servers that may be faulty."""
        return faults(self.n)

    @cached_property
    def quorum(self) -> int:
        """The number of servers in a quorum."""
        return quorum(self.n)

    @cached_property
    def keys(self) -> dict[int, bytes]:
        """Each party's key: server s is party s, client k is party ~k."""
        return dict(enumerate(self.servers)) | {~k: key for k, key in enumerate(self.clients)}

    @cached_property
    def run(self) -> bytes:
        """The run's id."""
        # The order and the widths are part of the run's id: a change here is a new version. Keys
        # are written with their lengths, so that no two rosters give the same bytes.
        numbers = (
            self.n,
            len(self.clients),
            self.minimum,
            self.deadline_ms,
            self.view_ms,
            self.resend_ms,
        )
        parts = [
            tag(self.protocol) + b" roster",
            *map(u32, numbers),
            *map(sized, self.servers + self.clients),
            sized(self.purpose),
        ]
        return hashlib.sha256(b"".join(parts)).digest()

    def leader(self, round_: int, view: int) -> int:
        """Return the leader of a view. It changes with the round, so that load and blame rotate."""
        return (round_ + view) % self.n

    def timeout_ms(self, view: int) -> int:
        """Return how long a view may last: doubled with each view (section 4.5.2), capped."""
        return self.view_ms << min(view, _MAX_TIMEOUT_DOUBLINGS)

    def wait_ms(self, resends: int) -> int:
        """Return how long to wait for the next resend: doubled with each one, capped."""
        return self.resend_ms << min(resends, _MAX_RESEND_DOUBLINGS)

    def key(self, party: int) -> bytes | None:
        """Return a party's key; none if the party does not take part in the run."""
        return self.keys.get(party)
