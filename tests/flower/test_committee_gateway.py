"""Signed uploads go to simulated servers; whoever carries them has nobody's keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from fedrfq.committee import AgreedRound, CommitteeSettings, PreviousRound, Simulated
from fedrfq.committee.round_result import FORGED, LEFT_OUT
from fedrfq.consensus.messages import Cert, Message, Part, PartKind, Upload
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.rules import Rules
from fedrfq.errors import UserError
from fedrfq.federation import signatures
from fedrfq.federation.application import Task
from fedrfq.federation.round_log import pack, unpack
from fedrfq.flower.committee_gateway import NetworkGateway, SimulatedGateway
from fedrfq.flower.decided_round import by_client
from fedrfq.flower.packed_result import public_in, result_for_clients
from fedrfq.node.courier import Carried
from fedrfq.prototypes.fixed_point import FULL_PRECISION, Globals, Uploads
from fedrfq.robust.detectors import DETECTORS
from support.committees import PUBLIC, rounds, some_settings, uploads

CLIENTS = 6
CLASSES = 3
VALUES = 4
SEED = 5
TASK = Task(DETECTORS["median"](), "weighted", FULL_PRECISION, CLIENTS, CLASSES, VALUES)
SETTINGS = CommitteeSettings(TASK, SEED, "00" * 32)
COMMITTEE = Simulated(servers=4, faulty=1)
RULES = Rules(COMMITTEE.federation(SETTINGS).roster)


def sent(number: int) -> Uploads:
    rng = np.random.default_rng(number)
    counts = rng.integers(1, 9, (CLIENTS, CLASSES))
    return Uploads(tuple(range(CLIENTS)), counts, rng.integers(-99, 99, (CLIENTS, CLASSES, VALUES)))


def signed(number: int, seed: int = SEED, rules: Rules = RULES) -> dict[int, Message]:
    """Return all clients' uploads of a round, as they come over the wire."""
    contents = zip(range(CLIENTS), sent(number).encoded(number), strict=True)
    return {
        k: rules.signed(Upload(number, k, content), signatures.simulated(seed, "client", k))
        for k, content in contents
    }


def carried(uploads: Mapping[int, Message], number: int = 1, last: bytes = b"") -> AgreedRound:
    return COMMITTEE.carry(SETTINGS, number, last, uploads)


def test_what_is_decided_is_to_the_byte_what_is_decided_where_the_clients_are_simulated_too() -> (
    None
):
    last = b""
    memory = TASK.detector.start(CLIENTS)
    globals_ = Globals.none(CLASSES, VALUES)
    for number in (1, 2, 3):
        expected = COMMITTEE.decide(
            SETTINGS, number, PreviousRound(last, memory, globals_), sent(number)
        )
        found = SimulatedGateway(COMMITTEE, SETTINGS).carry(number, last, signed(number))
        assert found.report == expected.report
        assert found.last == expected.last
        assert found.decision.uploads.clients == expected.decision.uploads.clients
        assert (found.decision.globals_.values_JV == expected.decision.globals_.values_JV).all()
        last = expected.last
        memory = expected.decision.state
        globals_ = expected.decision.globals_


def forgeries() -> dict[str, Message]:
    """Return forgeries of client 2's upload of round 2."""
    honest = signed(2)[2]
    earlier = signed(1)[2]
    body = honest.body
    assert isinstance(body, Upload)
    other = sent(3).encoded(2)[2]
    assert isinstance(earlier.body, Upload)
    disguised = Upload(2, 2, earlier.body.content)
    stranger = Rules(Simulated(servers=4).federation(replace(SETTINGS, seed=9)).roster)
    return {
        "altered": Message(RULES.run, Upload(2, 2, other), None, honest.signature),
        "replayed": earlier,
        "replayed as new": Message(RULES.run, disguised, None, earlier.signature),
        "signed by another": RULES.signed(body, signatures.simulated(SEED, "client", 3)),
        "signed by a stranger": RULES.signed(body, signatures.simulated(9, "client", 2)),
        "of another run": signed(2, rules=stranger)[2],
        "unsigned": Message(RULES.run, body, None, bytes(64)),
    }


@pytest.mark.parametrize("name", forgeries())
def test_servers_ignore_and_count_what_a_client_has_not_signed_for_the_round(name: str) -> None:
    last = carried(signed(1)).last
    uploads = {**signed(2), 2: forgeries()[name]}
    world = COMMITTEE.simulated_round(SETTINGS, 2, last).run_signed(uploads)
    honest = [world.nodes[server].machine for server in world.servers if world.nodes[server].honest]
    assert len(honest) == 3
    for server in honest:
        assert isinstance(server, Replica)
        assert server.ignored["bad signature"] >= 1
    found = carried(uploads, 2, last)
    assert found.decision.uploads.clients == (0, 1, 3, 4, 5)
    assert found.decision.uploads.refused == {2: FORGED}
    without = carried({k: upload for k, upload in signed(2).items() if k != 2}, 2, last)
    assert _parts(found) == _parts(without)


def _parts(agreed: AgreedRound) -> list[Message]:
    return [placed.message for placed in unpack(agreed.last)][1:]


def test_what_cannot_be_read_is_refused_though_it_is_signed() -> None:
    uploads = {
        **signed(1),
        4: RULES.signed(Upload(1, 4, b"no prototypes"), signatures.simulated(SEED, "client", 4)),
    }
    found = carried(uploads)
    assert found.decision.uploads.clients == (0, 1, 2, 3, 5)
    assert "shorter than its header" in found.decision.uploads.refused[4]


def test_who_reaches_no_server_is_left_out() -> None:
    found = carried({k: upload for k, upload in signed(1).items() if k < 5})
    assert found.decision.uploads.clients == (0, 1, 2, 3, 4)
    assert LEFT_OUT not in found.decision.uploads.refused.values()


@pytest.mark.parametrize("uploads", [{}, {2: forgeries()["altered"]}])
def test_without_any_upload_nothing_is_decided(uploads: dict[int, Message]) -> None:
    with pytest.raises(UserError, match="no upload of round 2 was signed"):
        carried(uploads, 2, carried(signed(1)).last)


def test_clients_are_not_told_what_the_detector_remembers() -> None:
    last = carried(signed(1)).last
    kinds = [
        getattr(placed.message.body, "what", None) for placed in unpack(result_for_clients(last))
    ]
    assert kinds == [None, PartKind.GLOBALS, PartKind.VERDICTS]
    assert result_for_clients(b"") == b""


def test_clients_are_told_public_statistics_and_the_proofs_have_them_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A courier brings what simulated servers decide: one public round, then one of prototypes."""
    asked = some_settings(4, public=PUBLIC)
    committee = Simulated()
    federation = committee.federation(asked)
    decided = rounds(committee, asked, 2)
    gateway = NetworkGateway.__new__(NetworkGateway)
    gateway.federation = federation
    last = b""
    proofs = []
    for number, agreed in enumerate(decided, 1):
        monkeypatch.setattr(gateway, "_carried", bringing(agreed, last))
        found = gateway.carry(number, last, own_uploads(asked, number))
        assert agreed.decision.public is not None
        assert found.decision.public is not None
        assert np.array_equal(found.decision.public.values_JV, agreed.decision.public.values_JV)
        told = part_kinds(result_for_clients(found.last))
        assert told == [PartKind.GLOBALS, PartKind.VERDICTS, PartKind.PUBLIC]
        assert found.report is not None
        proofs.append(part_kinds(found.report.bodies))
        last = found.last
    both = [PartKind.GLOBALS, PartKind.VERDICTS]
    assert proofs == [[*both, PartKind.PUBLIC], both]


def bringing(agreed: AgreedRound, last: bytes) -> Callable[..., Awaitable[Carried]]:
    """Return a courier's work: it must be told the last public part, and brings this decision."""
    cert, globals_, verdicts, _, public = (placed.message for placed in unpack(agreed.last))
    assert isinstance(cert.body, Cert)
    contents = [m.body.content for m in (globals_, verdicts, public) if isinstance(m.body, Part)]
    carried = Carried(
        cert.body.certificate, *contents, b"", pack([cert, globals_, verdicts, public])
    )

    async def work(number: int, uploads: list[Message], known: bytes) -> Carried:
        assert known == public_in(last)
        return carried

    return work


def own_uploads(asked: CommitteeSettings, number: int) -> dict[int, Message]:
    rules = Rules(Simulated().federation(asked).roster)
    contents = uploads(asked, number).encoded(number)
    return {
        k: rules.signed(Upload(number, k, content), signatures.simulated(asked.seed, "client", k))
        for k, content in enumerate(contents)
    }


def part_kinds(packed: bytes) -> list[PartKind]:
    bodies = [placed.message.body for placed in unpack(packed)]
    return [body.what for body in bodies if isinstance(body, Part)]


def test_of_two_uploads_of_a_client_the_first_is_carried() -> None:
    first = signed(1)[3]
    second = signed(2)[3]
    assert by_client([second, first, signed(1)[0]]) == {0: signed(1)[0], 3: second}
    assert list(by_client([second, signed(1)[0]])) == [0, 3]
