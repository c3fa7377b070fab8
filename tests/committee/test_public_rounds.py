"""Rounds in which class statistics on a public feature map are exchanged, for every committee."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedrfq.audit import Audit
from fedrfq.committee import (
    AgreedRound,
    Alone,
    Committee,
    CommitteeSettings,
    Direct,
    PreviousRound,
    Simulated,
)
from fedrfq.consensus.messages import Message, Part, PartKind, Upload
from fedrfq.consensus.rules import Rules
from fedrfq.federation import signatures
from fedrfq.federation.application import PrototypeApplication
from fedrfq.federation.round_log import unpack
from fedrfq.files import hash_chain
from fedrfq.prototypes.fixed_point import FULL_PRECISION, Globals, Precision, Uploads, encode
from fedrfq.robust.aggregation import decide_public
from fedrfq.robust.detectors import DETECTORS
from fedrfq.robust.detectors.none import NoDetection
from support.audited import failure, rules
from support.command import fedrfq
from support.committees import CLASSES, PUBLIC, VALUES, rounds, some_settings, uploads, written

ONE = 2**14


def same(a: Globals | None, b: Globals | None) -> bool:
    if a is None or b is None:
        return a is b
    return np.array_equal(a.present_J, b.present_J) and np.array_equal(a.values_JV, b.values_JV)


def statistics(agreed: AgreedRound) -> Globals:
    assert agreed.decision.public is not None
    return agreed.decision.public


# What is computed


def test_means_and_moments_are_those_of_all_samples_by_hand() -> None:
    """Two clients, with 1 and 3 samples of class 0 and 2 of class 1; a row of moments."""
    counts_KJ = np.array([[1, 0, 1], [3, 2, 5]])
    values_KJV = np.array([[[4], [0], [6]], [[8], [2], [12]]]) * ONE
    sent = Uploads((0, 1), counts_KJ, values_KJV)
    last = Globals.none(3, 1)
    counted, verdict, public = decide_public(NoDetection(), 2, 2, last, sent)
    assert counted.clients == (0, 1)
    assert verdict.kept_K.all()
    # (1·4 + 3·8) / 4, the only one, and (1·6 + 5·12) / 6.
    assert public.values_JV.tolist() == [[7 * ONE], [2 * ONE], [11 * ONE]]


def test_a_class_that_nobody_sends_keeps_its_last_statistics() -> None:
    last = Globals(np.array([True, True]), np.array([[5], [6]]))
    sent = Uploads((0,), np.array([[2, 0]]), np.array([[[9], [0]]]))
    _, _, public = decide_public(NoDetection(), 1, 2, last, sent)
    assert public.values_JV.tolist() == [[9], [6]]


def test_detectors_compare_class_means_and_drop_moments_with_them() -> None:
    """Honest moments differ wildly, and one client's mean of class 0 is far from all others."""
    counts_KJ = np.full((6, 3), 10)
    values_KJV = np.zeros((6, 3, 8), np.int64)
    values_KJV[:, 1] = ONE  # the mean of the other class
    values_KJV[:, 2, 0] = [k * 7 * ONE for k in range(6)]  # moments
    rng = np.random.default_rng(0)
    values_KJV[:, :2] += rng.integers(-ONE // 8, ONE // 8, (6, 2, 8))
    values_KJV[4, 0] = 7 * ONE
    values_KJV[4, 2] = -7 * ONE
    sent = Uploads(tuple(range(6)), counts_KJ, values_KJV)
    _, verdict, public = decide_public(DETECTORS["adaptive"](), 6, 2, Globals.none(3, 8), sent)
    assert verdict.kept_K.tolist() == [True, True, True, True, False, True]
    honest_KV = values_KJV[[0, 1, 2, 3, 5], 2]
    assert public.values_JV[2].tolist() == (honest_KV.sum(0) // 5).tolist()


def test_what_nobody_can_be_accused_of_is_limited_and_afresh_each_time() -> None:
    """Three hold class 0, and one of them sends class 1's mean: too few to accuse it."""
    rng = np.random.default_rng(0)
    values_KJV = rng.integers(-ONE // 32, ONE // 32, (6, 2, 8))
    values_KJV[:, 1] += ONE
    values_KJV[0, 0] += ONE
    counts_KJ = np.array([[10, 0]] * 3 + [[0, 10]] * 3)
    sent = Uploads(tuple(range(6)), counts_KJ, values_KJV)
    detector = DETECTORS["adaptive"](malicious=1)
    nothing = Globals.none(2, 8)
    _, verdict, found = decide_public(detector, 6, 2, nothing, sent)
    assert verdict.kept_K.all()
    _, _, plain = decide_public(NoDetection(), 6, 2, nothing, sent)
    assert plain.values_JV[0].mean() > ONE // 4
    assert abs(found.values_JV[0]).max() < ONE // 16
    # Wherever the classes were before: a client's data may change.
    elsewhere = Globals(np.array([True, True]), np.full((2, 8), 9 * ONE))
    _, _, again = decide_public(detector, 6, 2, elsewhere, sent)
    assert again.values_JV.tolist() == found.values_JV.tolist()


def test_counts_of_moments_are_not_compared_with_those_of_classes() -> None:
    """Rows of moments count all samples, 30 and 20 and 10; a class has at most 15."""
    counts_KJ = np.array([[15, 15, 30], [10, 10, 20], [5, 5, 10]])
    sent = Uploads((0, 1, 2), counts_KJ, np.zeros((3, 3, 1), np.int64))
    detector = NoDetection(clip=True, malicious=1)
    counted, verdict, _ = decide_public(detector, 3, 2, Globals.none(3, 1), sent)
    assert counted.counts_KJ.tolist() == [[10, 10, 20], [10, 10, 20], [5, 5, 10]]
    assert verdict.why(0) == "classes 0, 1: claims more samples than may count"


# Which rounds


@pytest.mark.parametrize("committee", [Direct(), Alone(), Simulated(), Simulated(1)])
def test_public_rounds_change_statistics_and_others_change_prototypes(
    committee: Committee,
) -> None:
    asked = some_settings(6, public=PUBLIC)
    found = rounds(committee, asked, 5)
    one, two, three, four, five = found
    assert not one.decision.globals_.present_J.any()
    assert statistics(one).values_JV.shape == (PUBLIC.rows, PUBLIC.values)
    for before, after in ((one, two), (two, three), (four, five)):
        assert same(statistics(after), statistics(before))
        assert not same(after.decision.globals_, before.decision.globals_)
    assert same(four.decision.globals_, three.decision.globals_)
    assert not same(statistics(four), statistics(three))
    for key, array in three.decision.state.items():
        assert np.array_equal(four.decision.state[key], array)
    assert four.decision.uploads.values_KJV.shape[1] == PUBLIC.rows


@pytest.mark.parametrize("detector", DETECTORS)
def test_a_committee_with_a_liar_decides_what_a_trusted_server_does(detector: str) -> None:
    asked = some_settings(6, detector=DETECTORS[detector](), public=PUBLIC)
    liars = Simulated(4, 1, "lie")
    for mine, right in zip(rounds(liars, asked, 4), rounds(Direct(), asked, 4), strict=True):
        assert same(statistics(mine), statistics(right))
        assert same(mine.decision.globals_, right.decision.globals_)
        assert np.array_equal(mine.decision.verdict.kept_K, right.decision.verdict.kept_K)
        assert np.array_equal(mine.decision.verdict.score_K, right.decision.verdict.score_K)


@pytest.mark.parametrize("detector", DETECTORS)
def test_detectors_remember_nothing_from_one_public_round_to_the_next(detector: str) -> None:
    """The same uploads after the same statistics get the same verdicts, whatever came between."""
    asked = some_settings(6, detector=DETECTORS[detector](), public=PUBLIC)
    last = statistics(rounds(Direct(), asked, 1)[0])
    sent = uploads(asked, 4)
    later = rounds(Direct(), asked, 3)[-1].decision
    used = PreviousRound(b"", later.state, later.globals_, last)
    fresh = PreviousRound.start(asked.task)._replace(public=last)
    verdicts = [
        Direct().decide(asked, 4, before, sent).decision.verdict for before in (used, fresh)
    ]
    assert np.array_equal(verdicts[0].kept_K, verdicts[1].kept_K)
    assert np.array_equal(verdicts[0].score_K, verdicts[1].score_K)


@pytest.mark.parametrize("detector", DETECTORS)
@pytest.mark.parametrize("committee", [Direct(), Simulated()])
def test_uploads_without_classes_are_counted_and_change_nothing(
    committee: Committee, detector: str
) -> None:
    """Where a method exchanges no prototypes, clients still say that they are there."""
    asked = some_settings(3, detector=DETECTORS[detector](), public=PUBLIC)
    first = rounds(committee, asked, 1)[0]
    decision = first.decision
    before = PreviousRound(first.last, decision.state, decision.globals_, decision.public)
    nothing = Uploads(
        (0, 1, 2), np.zeros((3, CLASSES), np.int64), np.zeros((3, CLASSES, VALUES), np.int64)
    )
    second = committee.decide(asked, 2, before, nothing)
    assert second.decision.uploads.clients == (0, 1, 2)
    assert same(second.decision.globals_, decision.globals_)
    assert same(statistics(second), statistics(first))


# What is refused


@pytest.mark.parametrize("committee", [Direct(), Alone(), Simulated()])
def test_a_mean_that_is_too_long_does_not_count(committee: Committee) -> None:
    asked = some_settings(4, detector=NoDetection(), public=PUBLIC)
    sent = uploads(asked, 1)
    counts_KJ = sent.counts_KJ.copy()
    values_KJV = sent.values_KJV.copy()
    counts_KJ[2, 0] = 3
    values_KJV[2, 0] = 2 * ONE
    before = PreviousRound.start(asked.task)
    found = committee.decide(
        asked, 1, before, replace(sent, counts_KJ=counts_KJ, values_KJV=values_KJV)
    )
    assert "the mean of class 0 has the norm 4.47" in found.decision.uploads.refused[2]
    message = encode(1, 2, counts_KJ[2], values_KJV[2], PUBLIC.precision)
    refused = PrototypeApplication(asked.task).refuses(Upload(1, 2, message))
    assert refused == found.decision.uploads.refused[2]
    without = committee.decide(asked, 1, before, sent.only(np.arange(4) != 2))
    assert same(statistics(found), statistics(without))


def signed(asked: CommitteeSettings, round_: int, sent: Uploads) -> dict[int, Message]:
    rules = Rules(Simulated().federation(asked).roster)
    return {
        client: rules.signed(
            Upload(round_, client, content), signatures.simulated(asked.seed, "client", client)
        )
        for client, content in zip(sent.clients, sent.encoded(round_), strict=True)
    }


def test_uploads_that_clients_signed_are_carried_in_the_form_of_the_round() -> None:
    asked = some_settings(4, public=PUBLIC)
    committee = Simulated()
    first = committee.carry(asked, 1, b"", signed(asked, 1, uploads(asked, 1)))
    assert same(statistics(first), statistics(rounds(Direct(), asked, 1)[0]))
    # Statistics in a round of prototypes, of one client, and prototypes of the others.
    messages = signed(asked, 2, uploads(asked, 2))
    wrong = signed(asked, 2, uploads(asked, 1))
    second = committee.carry(asked, 2, first.last, {**messages, 0: wrong[0]})
    assert "not an upload" in second.decision.uploads.refused[0]
    assert second.decision.uploads.clients == (1, 2, 3)
    assert same(statistics(second), statistics(first))


def test_of_signed_uploads_a_mean_that_is_too_long_is_refused_with_its_reason() -> None:
    asked = some_settings(4, public=PUBLIC)
    sent = uploads(asked, 1)
    counts_KJ = sent.counts_KJ.copy()
    values_KJV = sent.values_KJV.copy()
    counts_KJ[2, 0] = 3
    values_KJV[2, 0] = 2 * ONE
    long = replace(sent, counts_KJ=counts_KJ, values_KJV=values_KJV)
    found = Simulated().carry(asked, 1, b"", signed(asked, 1, long))
    assert "the mean of class 0 has the norm 4.47" in found.decision.uploads.refused[2]
    assert found.decision.uploads.clients == (0, 1, 3)


# One server alone


def test_a_liar_swaps_statistics_too_and_goes_on_from_the_right_ones() -> None:
    asked = some_settings(6, public=PUBLIC)
    absent = (5,)
    lies = rounds(Alone("lie"), asked, 4, absent)
    truth = rounds(Direct(), asked, 4, absent)
    for lie, right in zip(lies, truth, strict=True):
        expected_JV = statistics(right).values_JV.copy()
        assert statistics(right).present_J.all()
        expected_JV[:CLASSES] = np.roll(expected_JV[:CLASSES], 1, 0)
        assert np.array_equal(statistics(lie).values_JV, expected_JV)


def test_who_crashes_keeps_and_who_forgets_loses_the_statistics() -> None:
    asked = some_settings(6, public=PUBLIC)
    kept = rounds(Alone("crash", at=2), asked, 4)
    assert all(same(statistics(later), statistics(kept[0])) for later in kept)
    lost = rounds(Alone("forget", at=2), asked, 3)
    assert [agreed.decision.public is None for agreed in lost] == [False, True, True]


# The run's files


def bodies(path: Path) -> list[list[Message]]:
    """Return the messages of each round in bodies.bin."""
    entries = hash_chain.entries(path / "bodies.bin", rules(path).run)
    return [[placed.message for placed in unpack(entry.payload)] for entry in entries]


def kinds(messages: list[Message]) -> list[PartKind]:
    return [message.body.what for message in messages if isinstance(message.body, Part)]


def test_a_run_is_verified_and_recomputed_and_has_the_statistics_once(tmp_path: Path) -> None:
    path = written(tmp_path / "run", Simulated(4, 1, "lie"), 5, clients=4, public=PUBLIC)
    for recompute in (False, True):
        found = list(Audit(path, recompute).rounds())
        assert [one.round for one in found] == [1, 2, 3, 4, 5]
        assert all(one.recomputed for one in found) == recompute
    assert fedrfq("verify", path, "--recompute").returncode == 0
    without = [PartKind.GLOBALS, PartKind.VERDICTS, PartKind.STATE]
    whole = [*without, PartKind.PUBLIC]
    assert list(map(kinds, bodies(path))) == [whole, without, without, whole, without]


@pytest.mark.parametrize("fault", ["missing", "repeated", "altered"])
def test_a_public_part_that_is_missing_repeated_or_altered_is_found(
    tmp_path: Path, fault: str
) -> None:
    path = written(tmp_path / "run", Simulated(), 3, clients=3, public=PUBLIC)
    rewritten = bodies(path)
    last = rewritten[0][-1]
    assert isinstance(last.body, Part)
    unsigned = rules(path).unsigned
    if fault == "missing":
        rewritten[0].pop()
    elif fault == "repeated":
        rewritten[1].append(unsigned(Part(2, PartKind.PUBLIC, last.body.content)))
    else:
        rewritten[0][-1] = unsigned(Part(1, PartKind.PUBLIC, last.body.content[:-1] + b"\x01"))
    (path / "bodies.bin").write_bytes(b"")
    for messages in rewritten:
        payload = b"".join(
            len(message.wire).to_bytes(4, "little") + message.wire for message in messages
        )
        hash_chain.append(path / "bodies.bin", rules(path).run, payload)
    expected = {"missing": 1, "repeated": 2, "altered": 1}[fault]
    assert failure(path, recompute=True).round == expected


def test_prototypes_keep_their_own_precision() -> None:
    """In the same run, prototypes have 24 bits and statistics 6."""
    asked = some_settings(4, public=PUBLIC)
    first, second = rounds(Simulated(), asked, 2)
    assert asked.task.form(1).precision == Precision(6)
    assert asked.task.form(2).precision == FULL_PRECISION
    assert not (statistics(first).values_JV % Precision(6).step).any()
    assert (second.decision.globals_.values_JV % Precision(6).step).any()
