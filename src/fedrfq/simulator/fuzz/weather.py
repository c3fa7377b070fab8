"""The network of a schedule: what kinds of bad weather there are, until it is calm."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from fedrfq.consensus.messages import Kind
from fedrfq.consensus.roster import quorum
from fedrfq.simulator.network import Hole, LinkFaults, Split

_VIEWS = 7  # more than there are before the network is calm
_HOLLOW = (Kind.PREPREPARE, Kind.PREPARE, Kind.COMMIT, Kind.VIEWCHANGE)


def _rough(rng: Random, n: int, clients: int, faulty: frozenset[int]) -> LinkFaults:
    calm = rng.choice((200, 600, 1200, 2500))
    return LinkFaults(
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


def _directed(rng: Random, n: int, clients: int, faulty: frozenset[int]) -> LinkFaults:
    """Messages of some kinds and views reach some servers only, so that a few decide, or prepare, what others do not."""
    evil = rng.choice(sorted(server for server in faulty if server >= 0))
    one = rng.choice([server for server in range(n) if server not in faulty])
    if rng.random() < 0.3:
        drawn = _any_holes(rng, n)
    else:
        drawn = _trap(rng, n, (evil - 1) % n, one, faulty)
    certificates = [Hole(Kind.CERT, 0, frozenset(), frozenset())] * (rng.random() < 0.8)
    return LinkFaults(
        1, 10, rng.choice((1000, 1600, 2500)), holes=tuple(drawn + certificates), favoured=faulty
    )


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
    return [
        _hole(rng, kind, view, n) for kind in _HOLLOW for view in range(4) if rng.random() < 0.4
    ]


def _hole(rng: Random, kind: Kind, view: int, n: int) -> Hole:
    everybody = frozenset(range(n))
    number = rng.choice((1, 1, n - 1, rng.randint(0, n)))
    some = frozenset(rng.sample(range(n), number))
    if kind == Kind.VIEWCHANGE:
        return Hole(kind, view, some, everybody)
    return Hole(kind, view, everybody, some)


def _forgetful(rng: Random, n: int, clients: int, faulty: frozenset[int]) -> LinkFaults:
    """One server decides the first or second round alone, and nobody hears of it; or answers come late; or just anything."""
    kind = rng.choice(("trap", "trap", "echoes", "rough", "crashes"))
    if kind != "trap":
        if kind == "crashes":
            links = _crashy(rng, n, clients, faulty)
        else:
            links = _rough(rng, n, clients, faulty)
        if kind == "echoes":
            return replace(links, calm_ms=2500, splits=(), loss=0.0, echoes=True)
        return links
    one, other, *_ = rng.sample([server for server in range(n) if server not in faulty], 2)
    round_ = rng.choice((1, 2))
    alone = replace(_heard_by(Kind.COMMIT, 0, n, one), round=round_)
    nobody = [
        _heard_by(kind, view, n)
        for view in range(1, _VIEWS)
        for kind in (Kind.PREPREPARE, Kind.COMMIT)
    ]
    if round_ == 2:
        behind = _left_behind(n, other)
    else:
        behind = []
    return LinkFaults(
        1, 10, rng.choice((1600, 2500)), holes=(alone, *nobody, *behind, _heard_by(Kind.CERT, 0, n))
    )


def _left_behind(n: int, one: int) -> list[Hole]:
    """A server that does not learn that the first round is decided."""
    others = [server for server in range(n) if server != one]
    commits = replace(_heard_by(Kind.COMMIT, 0, n, *others), round=1)
    return [commits, *(_heard_by(Kind.VIEWCHANGE, view, n, *others) for view in range(1, _VIEWS))]


def _hoarding(rng: Random, n: int, clients: int, faulty: frozenset[int]) -> LinkFaults:
    """What is voted for in the first view that a faulty server leads only the faulty can prove; in the next nothing is
    prepared; and in the one after there is no quorum without them."""
    evil = [server for server in faulty if server >= 0]
    leads = min((server - 1) % n for server in evil)
    honest = [server for server in range(n) if server not in faulty and server != (leads + 3) % n]
    mute = rng.sample(honest, n - len(evil) - quorum(n) + 1)
    everybody = frozenset(range(n))
    return LinkFaults(
        1,
        10,
        rng.choice((1000, 1600, 2500)),
        holes=(
            *(_heard_by(Kind.PREPREPARE, view, n, *evil) for view in range(leads)),
            *(_heard_by(Kind.PREPARE, view, n, *evil) for view in (leads, leads + 1)),
            Hole(Kind.VIEWCHANGE, leads + 2, everybody - set(mute), everybody),
        ),
        favoured=faulty,
    )


def _slow(rng: Random, n: int, clients: int, faulty: frozenset[int]) -> LinkFaults:
    """Slower than the first views can bear: their time must grow."""
    return LinkFaults(
        rng.choice((1, 60)),
        rng.choice((120, 200)),
        rng.choice((400, 800)),
        loss=rng.choice((0.0, 0.1)),
    )


def _calm(rng: Random, n: int, clients: int, faulty: frozenset[int]) -> LinkFaults:
    return LinkFaults(1, rng.choice((2, 10, 30)))


def _crashy(rng: Random, n: int, clients: int, faulty: frozenset[int]) -> LinkFaults:
    return LinkFaults(
        1,
        10,
        800,
        loss=rng.choice((0.0, 0.1)),
        holes=tuple(_hole(rng, Kind.COMMIT, 0, n) for _ in range(rng.randint(0, 1))),
    )


WEATHER = {
    "rough": _rough,
    "directed": _directed,
    "slow": _slow,
    "calm": _calm,
    "crashes": _crashy,
    "forgetful": _forgetful,
    "hoarding": _hoarding,
}
