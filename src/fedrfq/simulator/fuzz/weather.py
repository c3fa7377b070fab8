"""The network of a schedule: the kinds of bad weather there are until the network is calm.

Each kind draws the link faults for n servers, some clients, and the parties that are faulty.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from fedrfq.consensus.messages import Kind
from fedrfq.consensus.roster import quorum
from fedrfq.simulator.network import Hole, LinkFaults, Split

_VIEWS = 7  # more than there are before the network is calm
_HOLE_KINDS = (Kind.PREPREPARE, Kind.PREPARE, Kind.COMMIT, Kind.VIEWCHANGE)


def _rough(rng: Random, n: int, clients: int, faulty: frozenset[int]) -> LinkFaults:
    """Loss, doubling, stragglers and partitions, sometimes with the faulty spared."""
    calm = rng.choice((200, 600, 1200, 2500))
    # The arguments draw from the generator in this order.
    return LinkFaults(
        rng.choice((1, 5)),
        rng.choice((10, 30)),
        calm,
        loss=rng.choice((0.0, 0.05, 0.2, 0.4)),
        double=rng.choice((0.0, 0.0, 0.1, 0.3)),
        straggle=rng.choice((0.0, 0.1, 0.3)),
        splits=_draw_splits(rng, n, clients, calm),
        favoured=faulty if rng.random() < 0.3 else frozenset(),
    )


def _draw_splits(rng: Random, n: int, clients: int, calm: int) -> tuple[Split, ...]:
    """Cut one server off all the time, or now and then any parties from all others for a while."""
    if rng.random() < 0.15:
        return (Split(rng.randrange(200), calm, frozenset([rng.randrange(n)])),)
    parties = [*range(n), *(~client for client in range(clients))]
    splits = []
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        start = rng.randrange(calm)
        side = frozenset(party for party in parties if rng.random() < 0.5)
        end = min(calm, start + rng.choice((50, 200, 800)))
        splits.append(Split(start, end, side))
    return tuple(splits)


def _directed(rng: Random, n: int, clients: int, faulty: frozenset[int]) -> LinkFaults:
    """Holes through which a few servers decide, or prepare, what the others do not hear of."""
    leader = rng.choice(sorted(server for server in faulty if server >= 0))
    lone = rng.choice([server for server in range(n) if server not in faulty])
    if rng.random() < 0.3:
        holes = _draw_holes(rng, n)
    else:
        # Server s leads view s - 1 of round 1.
        holes = _trap(rng, n, (leader - 1) % n, lone, faulty)
    # Otherwise the lone server's certificate would tell the others what was decided.
    if rng.random() < 0.8:
        holes.append(Hole(Kind.CERT, 0, frozenset(), frozenset()))
    calm = rng.choice((1000, 1600, 2500))
    return LinkFaults(1, 10, calm, holes=tuple(holes), favoured=faulty)


def _trap(rng: Random, n: int, faulty_view: int, lone: int, faulty: frozenset[int]) -> list[Hole]:
    """In round 1, let one server decide alone just before the view that a faulty server leads.

    If that is view 0, only the faulty can prove what is voted for in it, and the lone server
    decides something else in view 1.
    """
    if faulty_view == 0:
        return [_heard_by(Kind.PREPARE, 0, n, *faulty), _heard_by(Kind.COMMIT, 1, n, lone)]
    deciding = faulty_view - 1
    holes = [_heard_by(Kind.PREPREPARE, view, n, *faulty) for view in range(deciding)]
    if rng.random() < 0.2:
        holes.append(_heard_by(Kind.PREPARE, deciding, n, lone, *faulty))
    holes.append(_heard_by(Kind.COMMIT, deciding, n, lone))
    return holes


def _heard_by(kind: Kind, view: int, n: int, *hearers: int) -> Hole:
    return Hole(kind, view, frozenset(range(n)), frozenset(hearers))


def _draw_holes(rng: Random, n: int) -> list[Hole]:
    places = [(kind, view) for kind in _HOLE_KINDS for view in range(4)]
    return [_draw_hole(rng, kind, view, n) for kind, view in places if rng.random() < 0.4]


def _draw_hole(rng: Random, kind: Kind, view: int, n: int) -> Hole:
    everybody = frozenset(range(n))
    number = rng.choice((1, 1, n - 1, rng.randint(0, n)))
    some = frozenset(rng.sample(range(n), number))
    if kind == Kind.VIEWCHANGE:
        return Hole(kind, view, some, everybody)
    return Hole(kind, view, everybody, some)


def _forgetful(rng: Random, n: int, clients: int, faulty: frozenset[int]) -> LinkFaults:
    """Weather for a server that loses its log: a trap, late answers, or anything else."""
    kind = rng.choice(("trap", "trap", "echoes", "rough", "crashes"))
    if kind == "trap":
        return _forgetful_trap(rng, n, faulty)
    if kind == "crashes":
        return _crashy(rng, n, clients, faulty)
    links = _rough(rng, n, clients, faulty)
    if kind == "echoes":
        return replace(links, calm_ms=2500, splits=(), loss=0.0, echoes=True)
    return links


def _forgetful_trap(rng: Random, n: int, faulty: frozenset[int]) -> LinkFaults:
    """One server decides the first or second round alone, and nobody hears of it."""
    honest = [server for server in range(n) if server not in faulty]
    lone, other = rng.sample(honest, 2)
    round_ = rng.choice((1, 2))
    holes = [replace(_heard_by(Kind.COMMIT, 0, n, lone), round=round_)]
    for view in range(1, _VIEWS):
        holes.append(_heard_by(Kind.PREPREPARE, view, n))
        holes.append(_heard_by(Kind.COMMIT, view, n))
    if round_ == 2:
        holes += _left_behind(n, other)
    holes.append(_heard_by(Kind.CERT, 0, n))
    return LinkFaults(1, 10, rng.choice((1600, 2500)), holes=tuple(holes))


def _left_behind(n: int, server: int) -> list[Hole]:
    """Keep a server from learning that the first round is decided."""
    others = [other for other in range(n) if other != server]
    commits = replace(_heard_by(Kind.COMMIT, 0, n, *others), round=1)
    changes = [_heard_by(Kind.VIEWCHANGE, view, n, *others) for view in range(1, _VIEWS)]
    return [commits, *changes]


def _hoarding(rng: Random, n: int, clients: int, faulty: frozenset[int]) -> LinkFaults:
    """Weather for a server that hoards a prepared certificate.

    In the first view that a faulty server leads, only the faulty can prove what is voted for; in
    the next view nothing is prepared; and in the one after that there is no quorum without them.
    """
    servers = [server for server in faulty if server >= 0]
    first = min((server - 1) % n for server in servers)
    next_leader = (first + 3) % n  # leads view first + 2, and must not be mute
    honest = [server for server in range(n) if server not in faulty and server != next_leader]
    # One more mute server than the honest can spare: without the faulty there is no quorum.
    mute = rng.sample(honest, n - len(servers) - quorum(n) + 1)
    everybody = frozenset(range(n))
    calm = rng.choice((1000, 1600, 2500))
    holes = [_heard_by(Kind.PREPREPARE, view, n, *servers) for view in range(first)]
    holes += [_heard_by(Kind.PREPARE, view, n, *servers) for view in (first, first + 1)]
    holes.append(Hole(Kind.VIEWCHANGE, first + 2, everybody - set(mute), everybody))
    return LinkFaults(1, 10, calm, holes=tuple(holes), favoured=faulty)


def _slow(rng: Random, n: int, clients: int, faulty: frozenset[int]) -> LinkFaults:
    """Messages slower than the first views can bear: the views must grow longer."""
    return LinkFaults(
        rng.choice((1, 60)),
        rng.choice((120, 200)),
        rng.choice((400, 800)),
        loss=rng.choice((0.0, 0.1)),
    )


def _calm(rng: Random, n: int, clients: int, faulty: frozenset[int]) -> LinkFaults:
    return LinkFaults(1, rng.choice((2, 10, 30)))


def _crashy(rng: Random, n: int, clients: int, faulty: frozenset[int]) -> LinkFaults:
    """A mild network for parties that crash, sometimes with a hole for commits."""
    loss = rng.choice((0.0, 0.1))
    holes = tuple(_draw_hole(rng, Kind.COMMIT, 0, n) for _ in range(rng.randint(0, 1)))
    return LinkFaults(1, 10, 800, loss=loss, holes=holes)


WEATHER = {
    "rough": _rough,
    "directed": _directed,
    "slow": _slow,
    "calm": _calm,
    "crashes": _crashy,
    "forgetful": _forgetful,
    "hoarding": _hoarding,
}
