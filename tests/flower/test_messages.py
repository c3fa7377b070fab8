"""Messages survive the way there and back; anything else is refused with one line."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, RecordDict

from fedrfq.errors import UserError
from fedrfq.flower import messages, require
from fedrfq.flower.messages import NAME, NodeAnswer, NodeFigures, RoundOrder

ORDER = RoundOrder("ab" * 32, "rounds = 3\n", 2, b"result", True, False, "state")
FIGURES = NodeFigures(
    head_K=np.array([50.0, 100.0]),
    prototype_K=np.array([12.5, 0.0]),
    prototype_own_K=np.array([25.0, 75.0]),
    collapsed_K=np.array([0, 1]),
    saturated_K=np.array([0, 7]),
    samples_K=np.array([2, 1]),
    y_N=np.array([0, 2, 1]),
    distance_NJ=np.arange(9, dtype=np.float32).reshape(3, 3),
    common_KF=np.array([[25.0, np.nan, 100.0], [0.0, 50.0, 75.0]]),
)
LOSSES = ((1.0, 0.5, 0.25),)
ANSWER = NodeAnswer((3, 5), 3, (b"signed",), (5,), LOSSES, FIGURES, (3,), 1.5)


def changed(message: RoundOrder | NodeAnswer, **fields: Any) -> RecordDict:
    """Return the message with other fields."""
    return RecordDict({NAME: ConfigRecord({**dict(message.record()[NAME]), **fields})})


def test_an_order_comes_back_as_it_was() -> None:
    assert RoundOrder.read(ORDER.record()) == ORDER


def test_an_answer_comes_back_as_it_was() -> None:
    answer = NodeAnswer.read(ANSWER.record())
    assert {**vars(answer), "figures": None} == {**vars(ANSWER), "figures": None}
    assert answer.figures is not None
    for key, value in vars(FIGURES).items():
        assert np.array_equal(vars(answer.figures)[key], value, equal_nan=value.dtype.kind == "f")


def test_an_empty_answer_comes_back_too() -> None:
    assert vars(NodeAnswer.read(NodeAnswer().record())) == vars(NodeAnswer())


HOSTILE_ORDERS: dict[str, dict[str, Any]] = {
    "a run that is none": {"run": "xyz"},
    "a run of capitals": {"run": "AB" * 32},
    "a round below 0": {"round": -1},
    "a round beyond all": {"round": 1 << 31},
    "a round that is true": {"round": True},
    "a round in words": {"round": "2"},
    "a result before the first round": {"round": 0},
    "a result of no run": {"run": ""},
    "a result of text": {"last": "result"},
    "a long experiment": {"experiment": "x" * (messages.MAX_TEXT + 1)},
    "a long folder": {"state": "x" * (messages.MAX_TEXT + 1)},
    "a folder that is none": {"state": "a\0b"},
    "whether to train, as a number": {"train": 1},
    "a field too many": {"more": 1},
    "another version": {"version": messages.VERSION + 1},
}


@pytest.mark.parametrize("fields", HOSTILE_ORDERS.values(), ids=HOSTILE_ORDERS)
def test_hostile_orders_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        RoundOrder.read(changed(ORDER, **fields))


def numbers(*values: int) -> bytes:
    return np.array(values, "<u4").tobytes()


def figures(**fields: Any) -> dict[str, bytes]:
    return {"figures": replace(FIGURES, **fields).write()}


HOSTILE_ANSWERS: dict[str, dict[str, Any]] = {
    "clients twice": {"clients": numbers(3, 3)},
    "clients out of order": {"clients": numbers(5, 3)},
    "a client beyond all": {"clients": numbers(3, 5, 1 << 20)},
    "half a client": {"clients": b"\0\0\0"},
    "trained by a stranger": {"trained": numbers(4)},
    "a stranger left out": {"left_out": numbers(4)},
    "trained in no round": {"round": 0},
    "a round below 0": {"round": -3},
    "more uploads than trained": {"uploads": b"\1\0\0\0a\1\0\0\0b"},
    "an upload cut short": {"uploads": b"\xff\xff\xff\xffa"},
    "losses of more": {"losses": b"\0" * 48},
    "seconds below 0": {"seconds": -1.0},
    "seconds without end": {"seconds": float("inf")},
    "no seconds": {"seconds": float("nan")},
    "seconds that have no sum": {"seconds": 1e308},
    "figures cut short": {"figures": FIGURES.write()[:-1]},
    "figures with more": {"figures": FIGURES.write() + b"\0"},
    "figures of half a number": {"figures": b"\3\0\0\0abc"},
    "figures of other clients": figures(
        head_K=np.zeros(3), prototype_K=np.zeros(3), prototype_own_K=np.zeros(3)
    ),
    "more than 100 percent": figures(head_K=np.array([101.0, 0.0])),
    "no percent at all": figures(head_K=np.array([np.nan, 0.0])),
    "none by prototypes": figures(prototype_own_K=np.array([0.0, np.nan])),
    "less than 0 percent": figures(prototype_K=np.array([-1.0, 0.0])),
    "collapsed twice": figures(collapsed_K=np.array([2, 0])),
    "fewer than no values": figures(saturated_K=np.array([-1, 0])),
    "samples that are not there": figures(samples_K=np.array([2, 2])),
    "a label of no class": figures(y_N=np.array([0, 2, 3])),
    "a label below 0": figures(y_N=np.array([0, 2, -1])),
    "a distance below 0": figures(distance_NJ=-np.ones((3, 3), np.float32)),
    "distances of some samples": figures(
        y_N=np.zeros(3, np.int64), distance_NJ=np.ones((2, 2), np.float32)
    ),
    "all classes of half a client": figures(common_KF=np.zeros((1, 3))),
    "more than 100 percent of all classes": figures(common_KF=np.array([[101.0], [0.0]])),
    "less than 0 percent of all classes": figures(common_KF=np.array([[-1.0], [0.0]])),
    "an error that is none": {"error": 3},
}


@pytest.mark.parametrize("fields", HOSTILE_ANSWERS.values(), ids=HOSTILE_ANSWERS)
def test_hostile_answers_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        NodeAnswer.read(changed(ANSWER, **fields))


def test_what_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_BYTES", 100)
    with pytest.raises(UserError, match="last"):
        RoundOrder.read(changed(ORDER, last=b"x" * 101))
    with pytest.raises(UserError, match="uploads"):
        NodeAnswer.read(changed(ANSWER, uploads=b"x" * 101))


def test_what_is_no_message_of_ours_is_refused() -> None:
    record = ORDER.record()
    for strange in (
        RecordDict(),
        RecordDict({"other": record[NAME]}),
        RecordDict({NAME: record[NAME], "more": record[NAME]}),
    ):
        with pytest.raises(UserError, match="another app"):
            RoundOrder.read(strange)
    fields = dict(record[NAME])
    del fields["train"]
    with pytest.raises(UserError):
        RoundOrder.read(RecordDict({NAME: ConfigRecord(fields)}))
    with pytest.raises(UserError, match="same on all machines"):
        RoundOrder.read(changed(ORDER, version=messages.VERSION + 1))


def test_an_error_is_one_line_that_does_no_harm() -> None:
    answer = NodeAnswer.read(NodeAnswer(error="red \x1b[31m\nalert" + "!" * 5000).record())
    assert answer.error.startswith("red  [31m alert!")
    assert len(answer.error) == 1000


@pytest.mark.parametrize("installed", ["1.40.0", "1.43.0", "2.41.1", "0.42", "odd"])
def test_unknown_versions_of_flower_are_refused(
    installed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedrfq.flower.version", lambda name: installed)
    with pytest.raises(UserError, match=r"pip install 'fedrfq\[flower\]'"):
        require()


@pytest.mark.parametrize("installed", ["1.41.0", "1.42.0", "1.42.3.dev1"])
def test_known_versions_are_taken(installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedrfq.flower.version", lambda name: installed)
    require()


def test_without_flower_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("fedrfq.flower.version", missing)
    with pytest.raises(UserError, match=r"not installed: pip install 'fedrfq\[flower\]'"):
        require()
