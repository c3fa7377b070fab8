"""Schedules: all that is fixed before a simulated run begins, drawn from a seed.

Every schedule has at least one fault. The order of the random draws is part of every recorded seed:
a draw that is added, dropped or moved makes all recorded schedules different ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from fedrfq.consensus.messages import Kind
from fedrfq.consensus.roster import faults
from fedrfq.simulator.adversaries import BEHAVIOURS, CLIENTS
from fedrfq.simulator.fuzz.weather import WEATHER
from fedrfq.simulator.network import LinkFaults
from fedrfq.simulator.party import Crash

# How likely attackers are where holes in the network are made for them.
_DIRECTED = ("mutate", "mutate", "mutate", "equivocate", "equivocate", "lie", "twins")
# What a server may have made durable just before it crashes; None: any step.
_DURABLE = (
    None,
    Kind.UPLOAD,
    Kind.PROPOSAL,
    Kind.LIST,
    Kind.PREPARE,
    Kind.COMMIT,
    Kind.CERT,
    Kind.VIEWCHANGE,
    Kind.VIEWCHANGE,
)
# Mostly the smallest numbers: small schedules are fast, and they find what large ones find.
_CLIENTS = (4,) * 18 + (5, 6)
_ROUNDS = (3,) * 18 + (4, 5)
_STYLE_WEIGHTS = {
    "rough": 4,
    "directed": 4,
    "slow": 2,
    "calm": 2,
    "crashes": 2,
    "forgetful": 2,
    "hoarding": 1,
}

Behaviours = tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Schedule:
    """The settings of a run, its faulty parties, its crashes and its network."""

    seed: int
    n: int
    clients: int
    rounds: int
    minimum: int
    deadline_ms: int
    view_ms: int
    resend_ms: int
    training_ms: int  # the longest that a client trains in a round
    behaviours: Behaviours  # of faulty servers
    faulty_clients: Behaviours
    crashes: tuple[Crash, ...]
    clock_jumps: float  # the share of timers that fire early or late before the network is calm
    weak_client: int | None  # a client that tries to register a key everybody can sign with
    links: LinkFaults
    change_proposals: float = 0.0  # how often a server makes a change proposal
    clients_fetch: bool = False  # whether clients fetch the outcome
    ends: bool = False  # whether the servers propose a successor that ends the run

    def __str__(self) -> str:
        return "\n".join(f"{name:>16} {getattr(self, name)}" for name in self.__dataclass_fields__)


def draw(seed: int, n: int) -> Schedule:
    """Draw the schedule of this seed for n servers: a style, and within it what goes wrong."""
    rng = Random(seed)
    clients = rng.choice(_CLIENTS)
    rounds = rng.choice(_ROUNDS)
    style = rng.choices(tuple(_STYLE_WEIGHTS), tuple(_STYLE_WEIGHTS.values()))[0]
    faulty_clients = _draw_faulty_clients(rng, clients, style)
    behaviours = _draw_behaviours(rng, n, style)
    honest = [server for server in range(n) if server not in dict(behaviours)]
    faulty = frozenset(dict(behaviours)) | {~k for k, _ in faulty_clients}
    links = WEATHER[style](rng, n, clients, faulty)
    crashes = _draw_crashes(rng, style, honest, clients, links=links, behaviours=behaviours)
    weak_client = None
    if rng.random() < 0.03 and style != "forgetful":
        weak_client = rng.randrange(clients)
    # A weak key needs a forger, and a schedule needs a fault.
    if weak_client is not None or (style == "calm" and not behaviours and not faulty_clients):
        forger = behaviours[0][0] if behaviours else rng.randrange(n)
        behaviours = ((forger, "forge"), *behaviours[1:])
    if links.echoes:
        rounds = 5  # a server loses its log in round 3 or 4 and must come back
    minimum = rng.randint(1, _largest_minimum(style, clients, faulty_clients))
    deadline_ms, resend_ms = _draw_timeouts(rng, style)
    # The arguments below draw from the generator in this order.
    return Schedule(
        seed=seed,
        n=n,
        clients=clients,
        rounds=rounds,
        minimum=minimum,
        deadline_ms=deadline_ms,
        view_ms=100,
        resend_ms=resend_ms,
        training_ms=rng.choice((1, 20, 20, 100, 400)),
        behaviours=behaviours,
        faulty_clients=faulty_clients,
        crashes=crashes,
        clock_jumps=rng.choice((0.0, 0.0, 0.1, 0.3)) if links.calm_ms else 0.0,
        change_proposals=rng.choice((0.0, 0.0, 0.0, 0.3, 1.0)),
        clients_fetch=rng.random() < 0.2,
        ends=rng.random() < 0.3,
        weak_client=weak_client,
        links=links,
    )


def _largest_minimum(style: str, clients: int, faulty_clients: Behaviours) -> int:
    """Return the largest minimum of clients to draw; it is low where a server loses its log."""
    if style == "forgetful":
        return 2
    # With more, a round would wait for faulty clients, perhaps forever.
    return clients - len(faulty_clients)


def _draw_timeouts(rng: Random, style: str) -> tuple[int, int]:
    """Draw the deadline and the time to resend, which slow messages must not run into."""
    if style == "slow":
        return 500, 1000
    return rng.choice((150, 300)), rng.choice((400, 600))


def _draw_faulty_clients(rng: Random, clients: int, style: str) -> Behaviours:
    """Draw faulty clients; directed attacks mostly need one, whose uploads allow two valid sets."""
    if style in ("directed", "hoarding") and rng.random() < 0.8:
        number = 1
    else:
        number = rng.choice((0, 0, 1, 1, 2))
    chosen = sorted(rng.sample(range(clients), number))
    return tuple((client, rng.choice(tuple(CLIENTS))) for client in chosen)


def _draw_behaviours(rng: Random, n: int, style: str) -> Behaviours:
    """Draw faulty servers, at most f; where a server loses its log, that one counts as one."""
    max_faulty = faults(n) - (style == "forgetful")
    if style in ("directed", "hoarding"):
        number = max_faulty
    else:
        number = rng.choice((0, max_faulty, max_faulty, rng.randint(0, max_faulty)))
    names = {"directed": _DIRECTED, "hoarding": ("hoard",)}.get(style, tuple(BEHAVIOURS))
    # Server 1 leads view 0 of round 1: mostly draw from those that lead the first views.
    early_leaders = [1, 2, 3, *range(4, n), 0][: max(3, number)]
    eligible = list(range(n))
    if rng.random() < 0.7:
        eligible = early_leaders
    servers = rng.sample(eligible, number)
    return tuple((server, rng.choice(names)) for server in sorted(servers))


def _draw_crashes(
    rng: Random,
    style: str,
    honest: list[int],
    clients: int,
    *,
    links: LinkFaults,
    behaviours: Behaviours,
) -> tuple[Crash, ...]:
    """Draw crashes of honest parties, which are soon back."""
    if style == "forgetful":
        return _draw_log_losses(rng, honest, links)
    if style == "directed" and rng.random() < 0.4:
        return _draw_aimed_crashes(rng, honest, links, behaviours)
    number = 0
    if style == "crashes":
        number = rng.randint(1, 6)
    elif links.calm_ms:
        number = rng.choice((0, 0, 1, 3))
    # Each server is three times as likely to crash as each client.
    parties = honest * 3 + [~client for client in range(clients)]
    return tuple(_draw_crash(rng, rng.choice(parties)) for _ in range(number))


def _draw_aimed_crashes(
    rng: Random, honest: list[int], links: LinkFaults, behaviours: Behaviours
) -> tuple[Crash, ...]:
    """Crash all honest servers but one as they vote, so that they may forget what they voted for.

    The one that is spared is, if possible, one that decides while the others do not hear of it.
    """
    aimed = Kind.COMMIT
    if "equivocate" in dict(behaviours).values():
        aimed = Kind.PREPARE
    kind = rng.choice(
        (aimed, aimed, aimed, Kind.PREPARE, Kind.PREPREPARE, Kind.LIST, Kind.VIEWCHANGE)
    )
    commit_holes = [hole for hole in links.holes if hole.kind == Kind.COMMIT]
    deciding = [server for hole in commit_holes for server in hole.hearers if server in honest]
    spared = rng.choice(deciding or honest)
    return tuple(
        Crash(server, 1, rng.choice((0, 1, 1, 2)), rng.choice((1, 1, 20)), kind)
        for server in honest
        if server != spared
    )


def _draw_crash(rng: Random, party: int) -> Crash:
    kind = None
    if party >= 0:
        kind = rng.choice(_DURABLE)
    return Crash(party, rng.randint(1, 60), rng.randint(0, 3), rng.choice((1, 20, 200)), kind)


def _draw_log_losses(rng: Random, honest: list[int], links: LinkFaults) -> tuple[Crash, ...]:
    """Draw how one server loses its log.

    A trapped server loses it in the round after the one that it alone decides; where answers echo,
    a server loses it twice. Now and then the server crashes once more while it rejoins.
    """
    party, decided_alone = _trapped(honest, links) or (rng.choice(honest), None)
    again = [
        Crash(party, 1, rng.randint(0, 2), 20, kind)
        for kind in (Kind.FETCH, Kind.BODY)
        if rng.random() < 0.2
    ]
    if links.echoes:
        first = _draw_loss(rng, party, 1)
        second = _draw_loss(rng, party, rng.choice((3, 3, 4)))
        return first, second, *again
    if decided_alone is None:
        return _draw_crash(rng, party)._replace(forgets=True), *again
    return _draw_loss(rng, party, decided_alone + 1), *again


def _trapped(honest: list[int], links: LinkFaults) -> tuple[int, int | None] | None:
    """Return the honest server that alone hears commits, and the round in which it does."""
    for hole in links.holes:
        if hole.kind == Kind.COMMIT and len(hole.hearers) == 1:
            (server,) = hole.hearers
            if server in honest:
                return server, hole.round
    return None


def _draw_loss(rng: Random, party: int, round_: int) -> Crash:
    kind = rng.choice((Kind.UPLOAD, Kind.LIST, Kind.LIST, Kind.VIEWCHANGE))
    return Crash(
        party, 1, rng.choice((1, 2, 3)), rng.choice((1, 1, 20)), kind, round_, forgets=True
    )
