"""What servers agree on as bytes, and parity of committees.

A committee with liars in it decides, byte for byte, what one trusted server decides.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedrfq.committee import (
    COMMITTEES,
    AgreementReport,
    CommitteeSettings,
    Direct,
    PreviousRound,
    Simulated,
)
from fedrfq.committee.round_result import LEFT_OUT
from fedrfq.committee.simulated import TIMINGS
from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import Upload
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Refused
from fedrfq.errors import UserError
from fedrfq.federation import codec
from fedrfq.federation.application import PrototypeApplication
from fedrfq.federation.federation_file import Federation, experiment_digest
from fedrfq.federation.round_log import outcome, pack, parts, unpack
from fedrfq.prototypes import fixed_point
from fedrfq.prototypes.fixed_point import LIMIT, Globals, Uploads
from fedrfq.robust.aggregation import Decision
from fedrfq.robust.detectors import DETECTORS
from fedrfq.robust.detectors.detector import FULL, Reason, Verdict
from fedrfq.robust.detectors.reasons import toward
from fedrfq.simulator.adversaries import BEHAVIOURS
from fedrfq.simulator.network import NETWORKS
from support.cluster import roster
from support.committees import CLASSES, VALUES, rounds, some_settings, uploads
from support.judging import ruling

# Codecs


@st.composite
def some_globals(draw: st.DrawFn) -> Globals:
    present_J = draw(arrays.arrays(np.bool_, CLASSES))
    values_JV = draw(
        arrays.arrays(np.int64, (CLASSES, VALUES), elements=st.integers(1 - LIMIT, LIMIT - 1))
    )
    return Globals(present_J, values_JV)


SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
STATES = st.dictionaries(st.text(max_size=5), arrays.arrays(np.int64, SHAPES), max_size=3)
LONG = st.integers(-(2**63), 2**63 - 1)
# By client, its score and what became of each class: not sent, a weight, or a count that was cut.
NOT_SENT = -1
CUT = FULL + 1
FATES = st.lists(st.integers(NOT_SENT, CUT), min_size=CLASSES, max_size=CLASSES)
VERDICTS = st.dictionaries(st.integers(0, 2**32 - 1), st.tuples(LONG, FATES), max_size=5)


@given(some_globals())
def test_globals_come_back(globals_: Globals) -> None:
    back = codec.decode_globals(codec.encode_globals(globals_), CLASSES, VALUES)
    assert np.array_equal(back.present_J, globals_.present_J)
    assert np.array_equal(back.values_JV, globals_.values_JV)
    assert back.values_JV.dtype == np.int64


@given(STATES)
def test_a_detectors_memory_comes_back(state: dict[str, fixed_point.Ints]) -> None:
    back = codec.decode_state(codec.encode_state(state))
    assert back.keys() == state.keys()
    assert all(
        np.array_equal(back[name], state[name]) and back[name].shape == state[name].shape
        for name in state
    )


@given(VERDICTS)
def test_verdicts_come_back(judged: dict[int, tuple[int, list[int]]]) -> None:
    clients = tuple(sorted(judged))
    score = np.array([judged[k][0] for k in clients], np.int64)
    fate = np.array([judged[k][1] for k in clients], np.int64).reshape(len(clients), CLASSES)
    weight = np.clip(fate, 0, FULL)
    # A reason that names a class where the weight is even, and one that does not where it is odd.
    reason = np.where(weight % 2, Reason.FAR, toward(Reason.LEANING, CLASSES - 1))
    reason[(fate == NOT_SENT) | (fate == FULL)] = Reason.NONE
    reason[fate == CUT] = Reason.COUNT
    content = codec.encode_verdicts(clients, Verdict(weight, score, reason))
    found, verdict = codec.decode_verdicts(content, CLASSES)
    assert found == clients
    assert np.array_equal(verdict.weight_KJ, weight)
    assert np.array_equal(verdict.reason_KJ, reason)
    assert np.array_equal(verdict.score_K, score)
    some_left = (fate > 0).any(1)
    nothing_sent = (fate == NOT_SENT).all(1)
    assert np.array_equal(verdict.kept_K, some_left | nothing_sent)


# Clients 1 and 5 sent classes 0 and 1; client 5 counts in class 1 for 300.
LAYOUT = {"clients": 4, "bits": 4 + 2 * 12, "row": 4 + 2 * 12 + 1}


@pytest.mark.parametrize(
    ("at", "new", "why"),
    [
        ("clients", b"\x05\0\0\0", "ascending order"),
        ("bits", b"\xdb", "bits after those of the classes"),  # six are enough for 2 × 3
        ("bits", b"\x0b", "class 1 was not sent"),
        ("row", b"\x02", "unknown client or class"),
        ("row", b"\x01\0\0\0\x03", "unknown client or class"),
        ("row", b"\x01\0\0\0\x01\0\0\x04", "a weight of 1024 with a reason"),
        ("row", b"\x01\0\0\0\x01\0\0\x08", "a weight of 2048"),
        ("row", b"\x01\0\0\0\x01\0\x2c\x01\xc8", "its reason is unknown"),
        ("row", b"\x01\0\0\0\x01\0\x2c\x01\x02\x04", "its reason is unknown"),  # on class 3
        ("row", b"", "reasons of 12 bytes"),
        ("clients", b"", "but only"),
    ],
)
def test_hostile_verdicts_are_refused(at: str, new: bytes, why: str) -> None:
    sent = np.array([[1, 1, 0], [1, 1, 0]])
    weight = np.array([[FULL, FULL, 0], [FULL, 300, 0]])
    of = Uploads((1, 5), sent, sent[..., None])
    verdict = Verdict.of_weights(of, weight, np.array([7, -7]), toward(Reason.TOWARD, 0))
    good = codec.encode_verdicts((1, 5), verdict)
    assert len(good) == LAYOUT["row"] + 12
    codec.decode_verdicts(good, 3)
    place = LAYOUT[at]
    bad = good[:place] + new + good[place + len(new) :]
    if not new:
        bad = good[: place + 1]
    with pytest.raises(Refused, match=why):
        codec.decode_verdicts(bad, 3)


def test_verdicts_on_nobody_are_no_bytes_and_reasons_are_in_order() -> None:
    assert codec.encode_verdicts((), Verdict.on_nobody(3)) == b""
    assert codec.decode_verdicts(b"", 3)[0] == ()
    with pytest.raises(Refused, match="ascending order"):
        codec.decode_verdicts(bytes(4), 3)
    good = codec.encode_verdicts((1, 5), ruling([True, False], [0, 0], 3))
    rows = [good[-36:-24], good[-24:-12], good[-12:]]
    codec.decode_verdicts(good[:-36] + b"".join(rows), 3)
    for wrong in (rows[::-1], [rows[0], rows[0], rows[1]]):
        with pytest.raises(Refused, match="out of order"):
            codec.decode_verdicts(good[:-36] + b"".join(wrong), 3)


def _reencoded(decoder: str, content: bytes) -> bytes:
    if decoder == "globals":
        return codec.encode_globals(codec.decode_globals(content, CLASSES, VALUES))
    if decoder == "state":
        return codec.encode_state(codec.decode_state(content))
    if decoder == "verdicts":
        return codec.encode_verdicts(*codec.decode_verdicts(content, CLASSES))
    return pack(placed.message for placed in unpack(content))


@pytest.mark.parametrize("decoder", ["globals", "state", "verdicts", "round log"])
@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_refused_or_are_what_would_be_written(
    decoder: str, data: st.DataObject
) -> None:
    """Random bytes, and right ones with one thing changed."""
    verdicts = codec.encode_verdicts((1, 5), ruling([True, False], [7, -7], CLASSES))
    right = {
        "globals": codec.encode_globals(Globals.none(CLASSES, VALUES)),
        "state": codec.encode_state({"far": np.arange(3), "near": np.zeros((0, 2), np.int64)}),
        "verdicts": verdicts,
        "round log": pack(parts(Rules(roster()), 3, Outcome(b"a", b"", b"c"))),
    }[decoder]
    changed = bytearray(right)
    for _ in range(data.draw(st.integers(0, 2))):
        changed[data.draw(st.integers(0, len(right) - 1))] = data.draw(st.integers(0, 255))
    content = data.draw(
        st.sampled_from([bytes(changed), right[: data.draw(st.integers(0, len(right)))]])
        | st.binary(max_size=80)
    )
    with suppress(Refused):
        assert _reencoded(decoder, content) == content


def test_an_array_that_claims_more_than_there_is_is_refused_at_once() -> None:
    name = b"\x01\0\0\0a"
    for shape in (
        b"\x01\xff\xff\xff\xff",
        b"\x03" + b"\xff" * 8 + b"\0" * 4,
        b"\x04" + b"\xff" * 16,
        b"\x05" + b"\0" * 20,
    ):
        with pytest.raises(Refused):
            codec.decode_state(b"\x01\0\0\0" + name + shape)


# The application


@pytest.mark.parametrize("name", DETECTORS)
def test_the_application_is_what_one_trusted_server_computes(name: str) -> None:
    run_settings = some_settings(6, detector=DETECTORS[name]())
    application = PrototypeApplication(run_settings.task)
    before = PrototypeApplication(run_settings.task).start()
    for number, agreed in enumerate(rounds(Direct(), run_settings, 3), start=1):
        sent = uploads(run_settings, number)
        contents = [
            Upload(number, k, message)
            for k, message in zip(sent.clients, sent.encoded(number), strict=True)
        ]
        assert [application.refuses(upload) for upload in contents] == [None] * 6
        before = application.decide(number, before, contents)
        state, globals_, _ = application.memory(before)
        assert np.array_equal(globals_.values_JV, agreed.decision.globals_.values_JV)
        assert all(
            np.array_equal(state[key], value) for key, value in agreed.decision.state.items()
        )
        assert before.verdicts == codec.encode_verdicts(
            agreed.decision.uploads.clients, agreed.decision.verdict
        )


def test_an_upload_of_another_round_or_client_or_form_is_refused_with_its_reason() -> None:
    run_settings = some_settings()
    message = uploads(run_settings, 1).encoded(1)[2]
    refuses = PrototypeApplication(run_settings.task).refuses
    assert refuses(Upload(1, 2, message)) is None
    assert "of round 1 and client 2, not of round 2" in str(refuses(Upload(2, 2, message)))
    assert "client 3" in str(refuses(Upload(1, 3, message)))
    assert refuses(Upload(1, 2, message + b"\0"))
    assert "shorter" in str(refuses(Upload(1, 2, b"")))


@given(st.binary(max_size=120))
@settings(max_examples=100, deadline=None)
def test_any_content_is_refused_or_taken(content: bytes) -> None:
    assert PrototypeApplication(some_settings().task).refuses(Upload(1, 2, content)) is not None


# Parity


def same(one: Decision, other: Decision) -> bool:
    """Compare globals, verdicts, the detector's state, and what was refused and why."""
    a, b = (
        (
            codec.encode_globals(found.globals_),
            codec.encode_verdicts(found.uploads.clients, found.verdict),
            codec.encode_state(found.state),
            found.uploads.counts_KJ.tobytes(),
            dict(found.uploads.refused),
        )
        for found in (one, other)
    )
    return a == b


def reports(
    committee: Simulated, run_settings: CommitteeSettings, number: int
) -> list[AgreementReport]:
    """Return the reports of rounds, which must end as one trusted server would end them."""
    found = rounds(committee, run_settings, number)
    assert all(
        same(a.decision, b.decision)
        for a, b in zip(found, rounds(Direct(), run_settings, number), strict=True)
    )
    return [agreed.report for agreed in found if agreed.report is not None]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_any_behaviour_on_any_network_changes_nothing_that_is_decided(
    behaviour: str, network: str
) -> None:
    found = reports(Simulated(4, 1, behaviour, network), some_settings(5, seed=3), 4)
    assert [report.leader for report in found] == [
        (r + report.view) % 4 for r, report in enumerate(found, start=1)
    ]
    assert all(report.messages > 0 and report.length > 0 for report in found)


@pytest.mark.parametrize(("servers", "faulty"), [(1, 0), (4, 0), (5, 1), (6, 1), (7, 2), (10, 3)])
def test_any_number_of_servers_comes_to_the_same(servers: int, faulty: int) -> None:
    assert len(reports(Simulated(servers, faulty), some_settings(5), 2)) == 2


def test_who_misbehaves_how_changes_neither_the_runs_id_nor_a_certified_value() -> None:
    run_settings = some_settings()
    plain = Simulated()
    lying = Simulated(4, 1, "equivocate", "lossy")
    assert plain.federation(run_settings).text == lying.federation(run_settings).text
    bodies = [
        [report.bodies for report in reports(committee, run_settings, 3)]
        for committee in (plain, lying)
    ]
    assert bodies[0] == bodies[1]
    tables = [
        {"rounds": 3, "committee": {"name": "simulated", "servers": 4, **how}}
        for how in ({}, {"faulty": 1})
    ]
    assert experiment_digest(tables[0]) == experiment_digest(tables[1])
    assert experiment_digest(tables[0]) != experiment_digest({**tables[0], "rounds": 4})
    more = {"rounds": 3, "committee": {"name": "simulated", "servers": 7}}
    assert experiment_digest(tables[0]) != experiment_digest(more)


def test_the_same_seed_gives_the_same_bytes_and_another_other_keys() -> None:
    committee = Simulated(4, 1, "lie", "lossy")
    one, again = (rounds(committee, some_settings(), 2) for _ in range(2))
    assert [a.last for a in one] == [b.last for b in again]
    assert [a.report for a in one] == [b.report for b in again]
    assert not {*committee.federation(some_settings()).servers} & {
        *committee.federation(some_settings(seed=1)).servers
    }


def test_absent_clients_are_waited_for_until_the_deadline_and_no_longer() -> None:
    run_settings = some_settings(5)
    found = rounds(Simulated(4, 1, "silent"), run_settings, 3, absent=(1, 4))
    direct = rounds(Direct(), run_settings, 3, absent=(1, 4))
    assert all(same(a.decision, b.decision) for a, b in zip(found, direct, strict=True))
    assert found[0].decision.uploads.clients == (0, 2, 3)
    assert TIMINGS.deadline_ms < 60_000


def test_what_no_message_can_carry_is_refused_for_the_reason_one_server_gives() -> None:
    run_settings = some_settings(5)
    sent = uploads(run_settings, 1)
    counts_KJ = sent.counts_KJ.copy()
    values_KJV = sent.values_KJV.copy()
    counts_KJ[1, 0] = -1
    values_KJV[3, 0, 0] = 2 * LIMIT
    wrong = replace(
        sent, counts_KJ=counts_KJ, values_KJV=values_KJV, refused={7: "3 values are no numbers"}
    )
    before = PreviousRound.start(run_settings.task)
    one, many = (
        c.decide(run_settings, 1, before, wrong).decision for c in (Direct(), Simulated(4, 1))
    )
    assert same(one, many)
    assert set(many.uploads.refused) == {1, 3, 7}


def test_a_round_without_uploads_is_an_error_not_an_endless_wait() -> None:
    run_settings = some_settings(2)
    with pytest.raises(UserError, match="no upload of round 1"):
        rounds(Simulated(), run_settings, 1, absent=(0, 1))


def test_who_was_left_out_of_the_set_is_refused_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Client 3's upload never arrives: the others' uploads count, and its own is refused."""
    from fedrfq.consensus.client import Client

    true = Client.step
    monkeypatch.setattr(
        Client, "step", lambda self, event: [] if self.me == 3 else true(self, event)
    )
    found = rounds(Simulated(), some_settings(5), 1)[0].decision
    assert found.uploads.clients == (0, 1, 2, 4)
    assert found.uploads.refused == {3: LEFT_OUT}
    assert len(found.verdict.kept_K) == 4


# Settings


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"servers": 3}, "1, or 4 to"),
        ({"servers": 0}, "1, or 4 to"),
        ({"servers": 10**6}, "1, or 4 to"),
        ({"servers": 4, "faulty": 2}, "1 at most, because with a third or more"),
        ({"servers": 1, "faulty": 1}, "0 at most"),
        ({"faulty": -1}, "faulty"),
        ({"behaviour": "nice"}, "behaviour must be one of silent"),
        ({"network": "fast"}, "network must be one of calm"),
    ],
)
def test_impossible_committees_are_refused(options: dict[str, object], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        Simulated(**options)  # type: ignore[arg-type]


def test_direct_has_no_options_no_federation_and_no_report() -> None:
    assert not vars(Direct())
    assert Direct().federation(some_settings()) is None
    assert rounds(Direct(), some_settings(), 1)[0].report is None
    assert {"direct", "simulated", "alone"} <= COMMITTEES.keys()


# federation.toml


def test_a_federation_file_is_read_back_and_any_other_text_refused() -> None:
    federation = Simulated().federation(some_settings(detector=DETECTORS["bft"]()))
    text = federation.text
    again = Federation.read(text, "here")
    assert again == federation
    assert again.roster.run == federation.roster.run
    for changed in (
        text + "\n",
        text.replace("version = 1", "version = 2"),
        text.replace("classes = 3", "classes = 3.0"),
        text.replace("classes = 3", "classes = 99999999"),
        text.replace("clip = false", "clip = 0"),
        "",
    ):
        with pytest.raises(UserError, match="here"):
            Federation.read(changed, "here")
    other = text.replace("view_ms = 2000", "view_ms = 2001")
    assert Federation.read(other, "here").roster.run != federation.roster.run


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_damaged_federation_file_is_another_run_or_an_error(data: st.DataObject) -> None:
    federation = Simulated().federation(some_settings())
    letters = list(federation.text)
    letters[data.draw(st.integers(0, len(letters) - 1))] = data.draw(
        st.sampled_from('x0"[]=\n-é\x00')
    )
    if (text := "".join(letters)) == federation.text:
        return
    with suppress(UserError):
        assert Federation.read(text, "here").roster.run != federation.roster.run


@pytest.mark.parametrize("successor", [b"", b"n"])
def test_an_outcome_is_its_parts_in_order(successor: bytes) -> None:
    expected = Outcome(b"g", b"v", b"s", b"p", successor)
    messages = parts(Rules(roster()), 1, expected)
    assert len(messages) == 4 + bool(successor)
    assert outcome(messages) == expected
    assert outcome(messages[::-1]) is None
    assert outcome(messages[:2]) is None
