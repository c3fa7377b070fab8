"""What clients take back: nothing of it is left in what servers certify, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import Upload
from fedrfq.consensus.wire import Refused
from fedrfq.federation import codec
from fedrfq.federation.application import PrototypeApplication
from fedrfq.federation.retained import (
    MARK,
    is_withdrawal,
    judged,
    retained_in,
    retaining,
    statistics_of,
    withdrawal,
)
from fedrfq.node.transport.budget import client_pace
from fedrfq.prototypes.fixed_point import Uploads, encode
from fedrfq.robust.detectors import DETECTORS, Detector
from fedrfq.robust.detectors.adaptive import AdaptiveDetector
from fedrfq.robust.detectors.none import NoDetection
from fedrfq.robust.state import RETAINED
from support.committees import PUBLIC, some_settings, uploads
from support.parties import agreed, keys

REVOCABLE = replace(PUBLIC, revocable=True)
CLIENTS = 6


def application(clients: int = CLIENTS, detector: Detector | None = None) -> PrototypeApplication:
    return PrototypeApplication(some_settings(clients, 1, detector, public=REVOCABLE).task)


def sent(round_: int, clients: int = CLIENTS) -> dict[int, bytes]:
    """Return everybody's uploads of a round: statistics in 1, 4, 7, … and prototypes in others."""
    asked = some_settings(clients, 1, public=REVOCABLE)
    found = uploads(asked, round_)
    return dict(zip(found.clients, found.encoded(round_), strict=True))


def decide(
    app: PrototypeApplication, round_: int, before: Outcome, contents: Mapping[int, bytes]
) -> Outcome:
    found = [Upload(round_, k, content) for k, content in sorted(contents.items())]
    assert not [why for why in map(app.refuses, found) if why]
    return app.decide(round_, before, found)


def statistics(round_: int, client: int, held: Mapping[int, int]) -> bytes:
    """Return statistics with so many samples of some classes; the mean of class j is j + 1."""
    counts_R = np.zeros(REVOCABLE.rows, np.int64)
    for j, count in held.items():
        counts_R[j] = count
    counts_R[REVOCABLE.classes :] = counts_R.sum()
    steps_R1 = np.arange(1, REVOCABLE.rows + 1)[:, None] * (counts_R > 0)[:, None]
    steps_R1[REVOCABLE.classes :] = 0
    values_RV = np.repeat(steps_R1, REVOCABLE.values, 1) * REVOCABLE.precision.step
    return encode(round_, client, counts_R, values_RV, REVOCABLE.precision)


def take_back(round_: int, client: int) -> bytes:
    return withdrawal(round_, client, REVOCABLE)


def renumbered(content: bytes, client: int) -> bytes:
    round_, _, counts_R, values_RV = codec.fixed_point.decode(
        content, REVOCABLE.rows, REVOCABLE.values, REVOCABLE.precision
    )
    return encode(round_, client, counts_R, values_RV, REVOCABLE.precision)


# What remains is what it would have been


@pytest.mark.parametrize("name", sorted(DETECTORS))
@pytest.mark.parametrize("leaver", [0, 3, CLIENTS - 1])
def test_what_remains_is_that_of_a_federation_that_never_had_the_client(
    name: str, leaver: int
) -> None:
    detector = DETECTORS[name]()
    app = application(detector=detector)
    first = decide(app, 1, app.start(), sent(1))
    second = decide(app, 2, first, {**sent(2), leaver: take_back(2, leaver)})
    # The same federation, in which the client never sent its statistics …
    others = {k: content for k, content in sent(1).items() if k != leaver}
    without = decide(app, 1, app.start(), others)
    # … and one that has one client less.
    smaller = application(CLIENTS - 1, detector)
    fewer = {k: renumbered(content, k) for k, content in enumerate(others.values())}
    never = decide(smaller, 1, smaller.start(), fewer)
    assert second.public == without.public == never.public
    assert second.public != first.public


def test_nothing_of_the_client_is_left_in_what_servers_keep() -> None:
    app = application()
    first = decide(app, 1, app.start(), sent(1))
    assert sent(1)[3] in first.state
    second = decide(app, 2, first, {**sent(2), 3: take_back(2, 3)})
    assert sorted(retained_in(codec.decode_state(second.state))) == [0, 1, 2, 4, 5]
    assert sent(1)[3] not in second.state
    assert all(sent(1)[k] in second.state for k in (0, 1, 2, 4, 5))


@pytest.mark.parametrize("round_", [2, 4])
def test_some_samples_are_taken_back_by_statistics_of_the_others(round_: int) -> None:
    """In a round of prototypes, and in one in which everybody sends statistics."""
    detector = NoDetection(clip=False)
    app = application(detector=detector)
    less = statistics(round_, 2, {0: 5})
    before = decide(app, 1, app.start(), {**sent(1), 2: statistics(1, 2, {0: 7, 1: 900})})
    contents = {k: content for k, content in sent(round_).items() if k not in (4, 5)}
    after = decide(app, round_, before, {**contents, 2: MARK + less})
    expected = {**sent(1), 2: statistics(1, 2, {0: 5})}
    if round_ == 4:
        expected |= contents | {2: less}
        expected = {k: renumbered(content, k) for k, content in expected.items()}
    latest = {k: statistics_of(content) for k, content in expected.items()}
    _, alone = judged(latest, REVOCABLE, detector, CLIENTS)
    assert after.public == codec.encode_public(alone, REVOCABLE)
    assert after.public != before.public


def test_who_is_away_counts_with_what_it_sent_last() -> None:
    app = application()
    first = decide(app, 1, app.start(), sent(1))
    present = {k: content for k, content in sent(4).items() if k != 5}
    fourth = decide(app, 4, first, present)
    assert sent(1)[5] in fourth.state
    clients, verdict = codec.decode_verdicts(fourth.verdicts, REVOCABLE.classes)
    assert clients == (0, 1, 2, 3, 4)
    # The verdict is that on the latest statistics of all six, without the row of the absent one.
    latest = {**sent(4), 5: sent(1)[5]}
    everyone, _ = judged(latest, REVOCABLE, AdaptiveDetector(), CLIENTS)
    assert verdict.weight_KJ.tolist() == everyone.weight_KJ[:5].tolist()
    assert verdict.weight_KJ.any()
    assert verdict.reason_KJ.tolist() == everyone.reason_KJ[:5].tolist()
    assert verdict.score_K.tolist() == everyone.score_K[:5].tolist()
    gone = decide(app, 5, fourth, {5: take_back(5, 5)})
    assert gone.public == decide(app, 4, app.start(), present).public


def test_an_exchange_in_which_a_client_sends_no_class_takes_nothing_back() -> None:
    app = application()
    first = decide(app, 1, app.start(), sent(1))
    without_class = statistics_of(take_back(4, 5))
    fourth = decide(app, 4, first, {**sent(4), 5: without_class})
    assert sent(1)[5] in fourth.state
    never = decide(app, 1, app.start(), {5: statistics_of(take_back(1, 5))})
    assert retained_in(codec.decode_state(never.state)) == {}


def test_a_class_of_which_nobody_is_left_disappears() -> None:
    app = application()
    contents = {0: statistics(1, 0, {0: 4, 1: 4}), 1: statistics(1, 1, {0: 4, 2: 4})}
    first = decide(app, 1, app.start(), contents)
    second = decide(app, 2, first, {1: take_back(2, 1)})
    public = app.public(second.public)
    assert public is not None
    assert public.present_J.tolist() == [True, True, False, True, True]
    # When the last one has gone there is nothing, and the federation goes on.
    third = decide(app, 3, second, {0: take_back(3, 0)})
    assert third.public == b""
    assert decide(app, 4, third, sent(4)).public == decide(app, 4, app.start(), sent(4)).public


def test_twice_is_once_and_who_sent_nothing_has_nothing_to_take_back() -> None:
    app = application()
    contents = {k: content for k, content in sent(1).items() if k != 1}
    first = decide(app, 1, app.start(), contents)
    second = decide(app, 2, first, {1: take_back(2, 1), 3: take_back(2, 3)})
    third = decide(app, 3, second, {1: take_back(3, 1), 3: take_back(3, 3)})
    assert second.public == third.public
    only = {k: content for k, content in contents.items() if k != 3}
    assert third.public == decide(app, 1, app.start(), only).public


def test_a_client_may_come_back_with_another_upload_that_it_signs() -> None:
    app = application()
    first = decide(app, 1, app.start(), sent(1))
    second = decide(app, 2, first, {3: take_back(2, 3)})
    third = decide(app, 3, second, {3: MARK + statistics(3, 3, {1: 2})})
    assert 3 in retained_in(codec.decode_state(third.state))


def test_who_takes_back_has_a_verdict_and_changes_nobodys_prototypes() -> None:
    app = application()
    first = decide(app, 1, app.start(), sent(1))
    for round_ in (2, 4):
        others = {k: content for k, content in sent(round_).items() if k != 3}
        left = decide(app, round_, first, {**others, 3: take_back(round_, 3)})
        clients, verdict = codec.decode_verdicts(left.verdicts, REVOCABLE.classes)
        assert clients == tuple(range(CLIENTS))
        assert not verdict.sent_KJ[3].any()
        assert verdict.kept_K[3]
        absent = decide(app, round_, first, others)
        assert left.globals_ == absent.globals_
        _, expected = codec.decode_verdicts(absent.verdicts, REVOCABLE.classes)
        if round_ == 2:
            assert verdict.weight_KJ[[0, 1, 2, 4, 5]].tolist() == expected.weight_KJ.tolist()


# What is refused


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (sent(1)[3], "not an upload"),
        (MARK + sent(1)[3], "it is of round 1 and client 3, not of round 2 and client 3"),
        (take_back(2, 4), "it is of round 2 and client 4, not of round 2 and client 3"),
        (take_back(1, 3), "it is of round 1"),
        (MARK, "shorter than its header"),
        (MARK + MARK + take_back(2, 3), "not an upload"),
        (MARK + sent(2)[3], "not an upload"),
        (MARK + encode(2, 3, np.array([9, 0, 0, 9, 8]), np.zeros((5, 5), int)), "not an upload"),
    ],
)
def test_what_is_old_or_of_another_or_no_statistics_is_refused(content: bytes, why: str) -> None:
    found = application().refuses(Upload(2, 3, content))
    assert found is not None
    assert why in found


def test_statistics_beyond_the_bound_are_refused_with_the_mark_too() -> None:
    counts_R = np.array([4, 0, 0, 4, 4])
    values_RV = np.zeros((5, 5), np.int64)
    values_RV[0] = REVOCABLE.precision.most * REVOCABLE.precision.step
    content = encode(2, 3, counts_R, values_RV, REVOCABLE.precision)
    assert "norm" in str(application().refuses(Upload(2, 3, MARK + content)))


def test_a_federation_that_did_not_agree_to_it_takes_nothing_back() -> None:
    app = PrototypeApplication(some_settings(CLIENTS, 1, public=PUBLIC).task)
    for round_ in (1, 2):
        assert app.refuses(Upload(round_, 3, take_back(round_, 3))) is not None
    first = decide(app, 1, app.start(), sent(1))
    assert first.state == app.start().state


def test_one_that_is_refused_has_no_row_and_the_others_have_theirs() -> None:
    form = application().task.form(2)
    found = form.admit(2, {**sent(2), 1: take_back(2, 1), 4: take_back(1, 4)})
    assert (found.clients, list(found.refused)) == ((0, 1, 2, 3, 5), [4])
    assert found.replaced == {1: take_back(2, 1)}
    assert found.encoded(2) == [*sent(2).values()][:1] + [take_back(2, 1)] + [
        sent(2)[k] for k in (2, 3, 5)
    ]
    assert found.length() == sum(map(len, found.encoded(2)))


def test_frames_have_room_for_the_mark() -> None:
    large = replace(REVOCABLE, moments=300, values=2_000)
    frames = [
        client_pace(agreed(keys(4, 3), public)).frame_bytes
        for public in (replace(large, revocable=False), large)
    ]
    assert frames[1] == frames[0] + len(MARK)


# As bytes


@given(st.dictionaries(st.integers(0, 10**6), st.binary(max_size=40)))
def test_what_is_kept_comes_back(contents: dict[int, bytes]) -> None:
    state = codec.decode_state(codec.encode_state(retaining(contents)))
    assert list(retained_in(state).items()) == sorted(contents.items())


def test_a_withdrawal_is_known_by_having_no_class() -> None:
    assert is_withdrawal(take_back(2, 3))
    assert not is_withdrawal(take_back(2, 3)[len(MARK) :])
    assert not is_withdrawal(MARK + sent(1)[3])


@pytest.mark.parametrize(
    ("name", "numbers"), [("x", [0]), ("1", [9, 1]), ("1", []), ("1", [-1, 1])]
)
def test_a_state_that_keeps_no_uploads_is_refused(name: str, numbers: list[int]) -> None:
    state = {f"{RETAINED}/{name}": np.array(numbers, np.int64)}
    if numbers:
        with pytest.raises(Refused, match="does not name a client, or is cut"):
            retained_in(state)
        return
    assert retained_in(state) == {1: b""}


@pytest.mark.parametrize("client", [-1, CLIENTS])
def test_a_state_that_names_a_stranger_is_refused(client: int) -> None:
    with pytest.raises(Refused, match="not among the 6"):
        judged({client: sent(1)[0]}, REVOCABLE, AdaptiveDetector(), CLIENTS)
    with pytest.raises(Refused, match="what is no upload"):
        judged({0: b"nothing"}, REVOCABLE, AdaptiveDetector(), CLIENTS)


def test_uploads_without_statistics_to_replace_are_as_before() -> None:
    found = Uploads((0,), np.ones((1, 1), np.int64), np.ones((1, 1, 1), np.int64))
    assert found.length() == len(found.encoded(1)[0])
