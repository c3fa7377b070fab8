"""A schedule: all that is decided before a simulated run begins, drawn from a seed. There is always a fault."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from fedrfq.consensus.messages import Kind
from fedrfq.consensus.roster import faults
from fedrfq.simulator.adversaries import BEHAVIOURS, CLIENTS
from fedrfq.simulator.network import Hole, Links, Split
from fedrfq.simulator.world import Crash

_DIRECTED = ("mutate", "mutate", "mutate", "equivocate", "equivocate", "lie", "twins")
_DURABLE = (None, Kind.UPLOAD, Kind.LIST, Kind.PREPARE, Kind.COMMIT, Kind.CERT, Kind.VIEWCHANGE, Kind.VIEWCHANGE)
_HOLLOW = (Kind.PREPREPARE, Kind.PREPARE, Kind.COMMIT, Kind.VIEWCHANGE)


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
    links: Links

    def __str__(self) -> str:
        return "\n".join(f"{name:>14} {getattr(self, name)}" for name in self.__dataclass_fields__)


def draw(seed: int, n: int) -> Schedule:
    """The schedule of this seed for n servers: one of a few kinds of weather, in each of which anything may go wrong."""
    rng = Random(seed)
    clients = rng.choice((4, 4, 4, 4, 4, 4, 4, 4, 5, 6))
    rounds = rng.choice((3, 3, 3, 3, 3, 3, 3, 3, 4, 5))
    style = rng.choice(("rough", "rough", "directed", "directed", "slow", "calm", "crashes"))
    faulty_clients = _faulty_clients(rng, clients, style)
    behaviours = _behaviours(rng, n, style)
    honest = [server for server in range(n) if server not in dict(behaviours)]
    links = _WEATHER[style](rng, n, clients, frozenset(dict(behaviours)) | {~k for k, _ in faulty_clients})
    crashes = _crashes(rng, honest, clients, links, style, behaviours)
    weak = rng.randrange(clients) if rng.random() < 0.03 else None
    if weak is not None or (style == "calm" and not behaviours and not faulty_clients):
        evil = behaviours[0][0] if behaviours else rng.randrange(n)
        behaviours = ((evil, "forge"), *behaviours[1:])
    return Schedule(
        seed=seed,
        n=n,
        clients=clients,
        rounds=rounds,
        minimum=rng.randint(1, clients - len(faulty_clients)),
        deadline_ms=500 if style == "slow" else rng.choice((150, 300)),
        view_ms=100,
        resend_ms=1000 if style == "slow" else rng.choice((200, 400)),
        training_ms=rng.choice((1, 20, 20, 100, 400)),
        behaviours=behaviours,
        faulty_clients=faulty_clients,
        crashes=crashes,
        jumps=rng.choice((0.0, 0.0, 0.1, 0.3)) if links.calm_ms else 0.0,
        weak=weak,
        links=links,
    )


def _faulty_clients(rng: Random, clients: int, style: str) -> tuple[tuple[int, str], ...]:
    """Where an attack is directed, the faulty servers need a client of theirs: its uploads make two sets possible."""
    number = 1 if style == "directed" and rng.random() < 0.8 else rng.choice((0, 0, 1, 1, 2))
    return tuple((client, rng.choice(tuple(CLIENTS))) for client in sorted(rng.sample(range(clients), number)))


def _behaviours(rng: Random, n: int, style: str) -> tuple[tuple[int, str], ...]:
    most = faults(n)
    number = most if style == "directed" else rng.choice((0, most, most, rng.randint(0, most)))
    names = _DIRECTED if style == "directed" else tuple(BEHAVIOURS)
    early = [1, 2, 3, *range(4, n), 0][: max(3, number)]  # they lead the first rounds and views
    servers = rng.sample(early if rng.random() < 0.7 else range(n), number)
    return tuple((server, rng.choice(names)) for server in sorted(servers))


def _crashes(
    rng: Random, honest: list[int], clients: int, links: Links, style: str, behaviours: tuple[tuple[int, str], ...]
) -> tuple[Crash, ...]:
    """Of honest parties, at a random effect of a random step; who is away is back soon."""
    if style == "directed" and rng.random() < 0.4:
        aimed = Kind.PREPARE if "equivocate" in dict(behaviours).values() else Kind.COMMIT
        kind = rng.choice((aimed, aimed, aimed, Kind.PREPARE, Kind.PREPREPARE, Kind.LIST, Kind.VIEWCHANGE))
        deciding = [server for hole in links.holes if hole.kind == Kind.COMMIT for server in hole.hearers]
        spared = rng.choice([server for server in deciding if server in honest] or honest)
        return tuple(Crash(s, 1, rng.choice((0, 1, 1, 2)), rng.choice((1, 1, 20)), kind) for s in honest if s != spared)
    number = rng.randint(1, 6) if style == "crashes" else rng.choice((0, 0, 1, 3)) if links.calm_ms else 0
    parties = honest * 3 + [~client for client in range(clients)]
    return tuple(_crash(rng, rng.choice(parties)) for _ in range(number))


def _crash(rng: Random, party: int) -> Crash:
    kind = rng.choice(_DURABLE) if party >= 0 else None
    return Crash(party, rng.randint(1, 60), rng.randint(0, 3), rng.choice((1, 20, 200)), kind)


def _rough(rng: Random, n: int, clients: int, faulty: frozenset[int]) -> Links:
    calm = rng.choice((200, 600, 1200, 2500))
    return Links(
        rng.choice((1, 5)),
        rng.choice((10, 30)),
        calm,
        loss=rng.choice((0.0, 0.05, 0.2, 0.4)),
        double=rng.choice((0.0, 0.0, 0.1, 0.3)),
        straggle=rng.choice((0.0, 0.1, 0.3)),
        splits=_splits(rng, n, clients, calm),
        favoured=faulty if rng.random() < 0.3 else frozenset(),
    )


def _splits(rng: Random, n: int, clients: int, calm: int) -> tuple[Split, ...]:
    """Now and then one server is alone all the time; otherwise anybody is cut off from anybody for a while."""
    if rng.random() < 0.15:
        return (Split(rng.randrange(200), calm, frozenset([rng.randrange(n)])),)
    parties = [*range(n), *(~client for client in range(clients))]
    splits = []
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        start = rng.randrange(calm)
        side = frozenset(party for party in parties if rng.random() < 0.5)
        splits.append(Split(start, min(calm, start + rng.choice((50, 200, 800))), side))
    return tuple(splits)


def _directed(rng: Random, n: int, clients: int, faulty: frozenset[int]) -> Links:
    """Messages of some kinds and views reach some servers only, so that a few decide, or prepare, what others do not."""
    evil = rng.choice(sorted(server for server in faulty if server >= 0))
    one = rng.choice([server for server in range(n) if server not in faulty])
    drawn = _any_holes(rng, n) if rng.random() < 0.3 else _trap(rng, n, (evil - 1) % n, one, faulty)
    certificates = [Hole(Kind.CERT, 0, frozenset(), frozenset())] * (rng.random() < 0.8)
    return Links(1, 10, rng.choice((1000, 1600, 2500)), holes=tuple(drawn + certificates), favoured=faulty)


def _trap(rng: Random, n: int, leads: int, one: int, faulty: frozenset[int]) -> list[Hole]:
    """In the first round: before the view that a faulty server leads, one server decides, and nobody hears of it. If it
    leads view 0, what is voted for there only the faulty can prove, and one server decides something else in view 1."""
    if leads == 0:
        return [_heard_by(Kind.PREPARE, 0, n, *faulty), _heard_by(Kind.COMMIT, 1, n, one)]
    silent = [_heard_by(Kind.PREPREPARE, view, n, *faulty) for view in range(leads - 1)]
    unprepared = [_heard_by(Kind.PREPARE, leads - 1, n, one, *faulty)] * (rng.random() < 0.2)
    return [*silent, *unprepared, _heard_by(Kind.COMMIT, leads - 1, n, one)]


def _heard_by(kind: Kind, view: int, n: int, *hearers: int) -> Hole:
    return Hole(kind, view, frozenset(range(n)), frozenset(hearers))


def _any_holes(rng: Random, n: int) -> list[Hole]:
    return [_hole(rng, kind, view, n) for kind in _HOLLOW for view in range(4) if rng.random() < 0.4]


def _hole(rng: Random, kind: Kind, view: int, n: int) -> Hole:
    everybody = frozenset(range(n))
    number = rng.choice((1, 1, n - 1, rng.randint(0, n)))
    some = frozenset(rng.sample(range(n), number))
    return Hole(kind, view, some, everybody) if kind == Kind.VIEWCHANGE else Hole(kind, view, everybody, some)


def _slow(rng: Random, n: int, clients: int, faulty: frozenset[int]) -> Links:
    """Slower than the first views can bear: their time must grow."""
    return Links(rng.choice((1, 60)), rng.choice((120, 200)), rng.choice((400, 800)), loss=rng.choice((0.0, 0.1)))


def _calm(rng: Random, n: int, clients: int, faulty: frozenset[int]) -> Links:
    return Links(1, rng.choice((2, 10, 30)))


def _crashy(rng: Random, n: int, clients: int, faulty: frozenset[int]) -> Links:
    return Links(
        1, 10, 800, loss=rng.choice((0.0, 0.1)), holes=tuple(_hole(rng, Kind.COMMIT, 0, n) for _ in range(rng.randint(0, 1)))
    )


_WEATHER = {"rough": _rough, "directed": _directed, "slow": _slow, "calm": _calm, "crashes": _crashy}
