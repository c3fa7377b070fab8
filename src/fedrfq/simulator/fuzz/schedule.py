"""A schedule: all that is decided before a simulated run begins, drawn from a seed. There is always a fault."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from fedrfq.consensus.messages import Kind
from fedrfq.consensus.roster import faults
from fedrfq.simulator.adversaries import BEHAVIOURS, CLIENTS
from fedrfq.simulator.fuzz.weather import WEATHER
from fedrfq.simulator.network import LinkFaults
from fedrfq.simulator.party import Crash

_DIRECTED = ("mutate", "mutate", "mutate", "equivocate", "equivocate", "lie", "twins")
_DURABLE = (
    None,
    Kind.UPLOAD,
    Kind.LIST,
    Kind.PREPARE,
    Kind.COMMIT,
    Kind.CERT,
    Kind.VIEWCHANGE,
    Kind.VIEWCHANGE,
)
_CLIENTS = (4,) * 18 + (5, 6)
_ROUNDS = (3,) * 18 + (4, 5)
_STYLES = {
    "rough": 4,
    "directed": 4,
    "slow": 2,
    "calm": 2,
    "crashes": 2,
    "forgetful": 2,
    "hoarding": 1,
}


@dataclass(frozen=True)
class Schedule:
    seed: int
    n: int
    clients: int
    rounds: int
    minimum: int
    deadline_ms: int
    view_ms: int
    resend_ms: int
    training_ms: int  # a client's share of a round takes up to so long
    behaviours: tuple[tuple[int, str], ...]  # of faulty servers
    faulty_clients: tuple[tuple[int, str], ...]
    crashes: tuple[Crash, ...]
    jumps: float  # the share of timers that fire early or late before the network is calm
    weak: int | None  # a client that tries to register a key everybody can sign with
    links: LinkFaults
    change_proposals: float = 0.0  # how often a server speaks as a client
    wants: bool = False  # whether clients fetch the outcome
    ends: bool = False  # whether the application says that the last round is the last

    def __str__(self) -> str:
        return "\n".join(f"{name:>14} {getattr(self, name)}" for name in self.__dataclass_fields__)


def draw(seed: int, n: int) -> Schedule:
    """The schedule of this seed for n servers: one of a few kinds of weather, in each of which anything may go wrong."""
    rng = Random(seed)
    clients = rng.choice(_CLIENTS)
    rounds = rng.choice(_ROUNDS)
    style = rng.choices(tuple(_STYLES), tuple(_STYLES.values()))[0]
    faulty_clients = _faulty_clients(rng, clients, style)
    behaviours = _behaviours(rng, n, style)
    honest = [server for server in range(n) if server not in dict(behaviours)]
    links = WEATHER[style](
        rng, n, clients, frozenset(dict(behaviours)) | {~k for k, _ in faulty_clients}
    )
    crashes = _crashes(rng, honest, clients, links, style, behaviours)
    if rng.random() < 0.03 and style != "forgetful":
        weak = rng.randrange(clients)
    else:
        weak = None
    if weak is not None or (style == "calm" and not behaviours and not faulty_clients):
        if behaviours:
            evil = behaviours[0][0]
        else:
            evil = rng.randrange(n)
        behaviours = ((evil, "forge"), *behaviours[1:])
    return Schedule(
        seed=seed,
        n=n,
        clients=clients,
        rounds=5 if links.echoes else rounds,
        minimum=rng.randint(1, 2 if style == "forgetful" else clients - len(faulty_clients)),
        deadline_ms=500 if style == "slow" else rng.choice((150, 300)),
        view_ms=100,
        resend_ms=1000 if style == "slow" else rng.choice((400, 600)),
        training_ms=rng.choice((1, 20, 20, 100, 400)),
        behaviours=behaviours,
        faulty_clients=faulty_clients,
        crashes=crashes,
        jumps=rng.choice((0.0, 0.0, 0.1, 0.3)) if links.calm_ms else 0.0,
        change_proposals=rng.choice((0.0, 0.0, 0.0, 0.3, 1.0)),
        wants=rng.random() < 0.2,
        ends=rng.random() < 0.3,
        weak=weak,
        links=links,
    )


def _faulty_clients(rng: Random, clients: int, style: str) -> tuple[tuple[int, str], ...]:
    """Where an attack is directed, the faulty servers need a client of theirs: its uploads make two sets possible."""
    if style in ("directed", "hoarding") and rng.random() < 0.8:
        number = 1
    else:
        number = rng.choice((0, 0, 1, 1, 2))
    return tuple(
        (client, rng.choice(tuple(CLIENTS)))
        for client in sorted(rng.sample(range(clients), number))
    )


def _behaviours(rng: Random, n: int, style: str) -> tuple[tuple[int, str], ...]:
    """In forgetful weather one of those that may be faulty is the server that loses its log."""
    most = faults(n) - (style == "forgetful")
    if style in ("directed", "hoarding"):
        number = most
    else:
        number = rng.choice((0, most, most, rng.randint(0, most)))
    names = {"directed": _DIRECTED, "hoarding": ("hoard",)}.get(style, tuple(BEHAVIOURS))
    early = [1, 2, 3, *range(4, n), 0][: max(3, number)]  # they lead the first rounds and views
    servers = rng.sample(early if rng.random() < 0.7 else range(n), number)
    return tuple((server, rng.choice(names)) for server in sorted(servers))


def _crashes(
    rng: Random,
    honest: list[int],
    clients: int,
    links: LinkFaults,
    style: str,
    behaviours: tuple[tuple[int, str], ...],
) -> tuple[Crash, ...]:
    """Of honest parties, at a random effect of a random step; who is away is back soon."""
    if style == "forgetful":
        return _losses(rng, honest, links)
    if style == "directed" and rng.random() < 0.4:
        if "equivocate" in dict(behaviours).values():
            aimed = Kind.PREPARE
        else:
            aimed = Kind.COMMIT
        kind = rng.choice(
            (aimed, aimed, aimed, Kind.PREPARE, Kind.PREPREPARE, Kind.LIST, Kind.VIEWCHANGE)
        )
        deciding = [
            server for hole in links.holes if hole.kind == Kind.COMMIT for server in hole.hearers
        ]
        spared = rng.choice([server for server in deciding if server in honest] or honest)
        return tuple(
            Crash(s, 1, rng.choice((0, 1, 1, 2)), rng.choice((1, 1, 20)), kind)
            for s in honest
            if s != spared
        )
    if style == "crashes":
        number = rng.randint(1, 6)
    else:
        if links.calm_ms:
            number = rng.choice((0, 0, 1, 3))
        else:
            number = 0
    parties = honest * 3 + [~client for client in range(clients)]
    return tuple(_crash(rng, rng.choice(parties)) for _ in range(number))


def _crash(rng: Random, party: int) -> Crash:
    if party >= 0:
        kind = rng.choice(_DURABLE)
    else:
        kind = None
    return Crash(party, rng.randint(1, 60), rng.randint(0, 3), rng.choice((1, 20, 200)), kind)


def _losses(rng: Random, honest: list[int], links: LinkFaults) -> tuple[Crash, ...]:
    """Of one server's log: where it is trapped, in the round after the one that it alone decides; where answers echo,
    twice. Now and then it crashes once more while it rejoins."""
    alone = [
        (hole.hearers, hole.round)
        for hole in links.holes
        if hole.kind == Kind.COMMIT and len(hole.hearers) == 1
    ]
    trapped = [
        (server, round_) for hearers, round_ in alone for server in hearers if server in honest
    ]
    if trapped:
        party, round_ = trapped[0]
    else:
        party = rng.choice(honest)
        round_ = None
    again = [
        Crash(party, 1, rng.randint(0, 2), 20, kind)
        for kind in (Kind.FETCH, Kind.BODY)
        if rng.random() < 0.2
    ]
    if links.echoes:
        return _loss(rng, party, 1), _loss(rng, party, rng.choice((3, 3, 4))), *again
    if round_ is None:
        return _crash(rng, party)._replace(forgets=True), *again
    return _loss(rng, party, round_ + 1), *again


def _loss(rng: Random, party: int, round_: int) -> Crash:
    kind = rng.choice((Kind.UPLOAD, Kind.LIST, Kind.LIST, Kind.VIEWCHANGE))
    return Crash(
        party, 1, rng.choice((1, 2, 3)), rng.choice((1, 1, 20)), kind, round_, forgets=True
    )
