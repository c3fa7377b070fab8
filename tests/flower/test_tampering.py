"""A server app that tampers with what it carries: servers ignore it, clients notice and say so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedrfq.audit import Audit
from fedrfq.committee.round_result import FORGED
from fedrfq.consensus.messages import Message, Part, PartKind, Upload, decode, unsigned
from fedrfq.errors import UserError
from fedrfq.federation import codec
from fedrfq.federation.round_log import pack, unpack
from fedrfq.files import toml
from fedrfq.flower.messages import NodeAnswer, RoundOrder
from fedrfq.flower.run_directory import NOTHING_CAME
from fedrfq.flower.serverapp import main, uploaded
from fedrfq.prototypes.fixed_point import Globals
from fedrfq.runs.run_directory import RunDirectory
from support.flowers import SMALL, Nodes, context, hear, written

# One client a node.
NODES = 4
VICTIM = 1

heard = pytest.fixture(autouse=True)(hear)


def run(folder: Path, grid: Nodes, **settings: str | float) -> RunDirectory:
    path = written(folder, SMALL)
    defaults: dict[str, str | float] = {"experiment": path, "out": str(folder / "out")}
    main(grid, context(**{**defaults, "deadline_s": 5.0, **settings}))
    (run_path,) = (folder / "out").glob("*/*")
    return RunDirectory.open(run_path)


# Uploads


def altered(answer: NodeAnswer, _: list[NodeAnswer]) -> tuple[bytes, ...]:
    """Change a value, and keep the client's signature."""
    wire = bytearray(answer.uploads[0])
    wire[-65] ^= 1
    return (bytes(wire),)


def dropped(answer: NodeAnswer, _: list[NodeAnswer]) -> tuple[bytes, ...]:
    return ()


def replayed(_: NodeAnswer, before: list[NodeAnswer]) -> tuple[bytes, ...]:
    return before[0].uploads


def disguised(answer: NodeAnswer, before: list[NodeAnswer]) -> tuple[bytes, ...]:
    """Put this round's number on the last round's upload."""
    new = decode(answer.uploads[0])
    old = decode(before[0].uploads[0])
    assert isinstance(old.body, Upload)
    body = Upload(new.body.round, VICTIM, old.body.content)
    return (Message(new.run, body, None, old.signature).wire,)


def garbled(answer: NodeAnswer, _: list[NodeAnswer]) -> tuple[bytes, ...]:
    return (answer.uploads[0][:20],)


@pytest.mark.parametrize(
    ("tamper", "why"),
    [
        (altered, FORGED),
        (dropped, NOTHING_CAME),
        (replayed, FORGED),
        (disguised, FORGED),
        (garbled, NOTHING_CAME),
    ],
)
def test_what_becomes_of_an_upload_comes_out(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    tamper: Callable[[NodeAnswer, list[NodeAnswer]], tuple[bytes, ...]],
    why: str,
) -> None:
    grid = Nodes(NODES)
    before = list[NodeAnswer]()
    left_out = list[tuple[int, ...]]()

    def back(node: int, answer: NodeAnswer) -> NodeAnswer:
        left_out.append(answer.left_out)
        if node != VICTIM or not answer.uploads:
            return answer
        before.append(answer)
        if answer.round == 2:
            return replace(answer, uploads=tamper(answer, before))
        return answer

    grid.back = back
    found = run(tmp_path, grid)
    assert [record.refused for record in found.rounds()] == [{}, {str(VICTIM): why}, {}]
    # The client itself notices in the next round.
    assert left_out.count((VICTIM,)) == 1
    assert f"round 2 was decided without the uploads that clients {VICTIM} had sent" in caplog.text
    # What was decided is valid all the same.
    assert len(list(Audit(found.path, recompute=True).rounds())) == 3


def test_no_node_can_upload_for_anothers_client(tmp_path: Path) -> None:
    grid = Nodes(NODES)
    seen = list[NodeAnswer]()

    def back(_: int, answer: NodeAnswer) -> NodeAnswer:
        seen.append(answer)
        return answer

    grid.back = back
    run(tmp_path, grid)
    one = next(a for a in seen if a.trained == (0,))
    other = next(a for a in seen if a.trained == (VICTIM,))
    assert [message.wire for message in uploaded(one)] == list(one.uploads)
    assert not list(uploaded(replace(one, uploads=other.uploads)))


# Results


def invented(order: RoundOrder, _: list[RoundOrder]) -> RoundOrder:
    """Put other prototypes under the true certificate."""
    cert, globals_, verdicts = [placed.message for placed in unpack(order.last)]
    assert isinstance(globals_.body, Part)
    classes = 10
    found = codec.decode_globals(
        globals_.body.content, classes, len(globals_.body.content) // classes // 4
    )
    other = Globals(found.present_J, np.where(found.present_J[:, None], found.values_JV + 1, 0))
    body = unsigned(cert.run, Part(order.round, PartKind.GLOBALS, codec.encode_globals(other)))
    return replace(order, last=pack([cert, body, verdicts]))


def unvoted(order: RoundOrder, _: list[RoundOrder]) -> RoundOrder:
    """Change a signature of the certificate."""
    wire = bytearray(order.last)
    at = len(pack(placed.message for placed in unpack(order.last)[:1])) - 1
    wire[at] ^= 1
    return replace(order, last=bytes(wire))


def older(order: RoundOrder, before: list[RoundOrder]) -> RoundOrder:
    """Send the result of the round before with the number of this one."""
    return replace(order, last=before[-1].last)


def none(order: RoundOrder, _: list[RoundOrder]) -> RoundOrder:
    return replace(order, last=b"")


@pytest.mark.parametrize(
    ("tamper", "line"),
    [
        (invented, "its content is not what was certified"),
        (unvoted, "its certificate does not have enough servers' signatures"),
        (older, "its certificate is of round 1"),
        (none, "it does not begin with a certificate"),
    ],
)
def test_no_client_learns_from_what_was_not_certified(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    tamper: Callable[[RoundOrder, list[RoundOrder]], RoundOrder],
    line: str,
) -> None:
    grid = Nodes(NODES)
    before = list[RoundOrder]()

    def to(node: int, order: RoundOrder) -> RoundOrder:
        if order.hello:
            return order
        if node == VICTIM and order.round < 2:
            before.append(order)
        if node == VICTIM and order.round == 2:
            return tamper(order, before)
        return order

    grid.to = to
    found = run(tmp_path, grid)
    assert (
        f"the result of round 2 is refused, since this federation did not certify it: {line}"
        in caplog.text
    )
    # The victim trained no further.
    assert [record.participants for record in found.rounds()] == [4, 4, 3]


def test_a_result_that_was_handed_out_before_is_refused_once_a_newer_one_is_known(
    tmp_path: Path,
) -> None:
    grid = Nodes(NODES)
    last = dict[int, RoundOrder]()

    def to(_: int, order: RoundOrder) -> RoundOrder:
        last[order.round] = order
        return order

    grid.to = to
    run(tmp_path, grid)
    from fedrfq.flower.clientapp import answered

    answer = answered(last[1].record(), grid.config(VICTIM), {})
    assert "the result of round 1 is refused, since this node knows that of round 3" in answer.error
    assert not answer.uploads


def test_servers_of_its_own_do_not_help_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The result is certified, but by a committee that is not this federation's."""
    (tmp_path / "other").mkdir()
    grid = Nodes(NODES)
    theirs = Nodes(NODES)
    results = dict[int, RoundOrder]()

    def note(_: int, order: RoundOrder) -> RoundOrder:
        results[order.round] = order
        return order

    theirs.to = note
    path = written(tmp_path / "other", toml.merge(SMALL, {"seed": 1}))
    main(theirs, context(experiment=path, out=str(tmp_path / "other" / "out")))

    def to(_: int, order: RoundOrder) -> RoundOrder:
        if order.round == 1 and not order.hello:
            return replace(order, last=results[1].last)
        return order

    grid.to = to
    with pytest.raises(UserError, match="0 clients trained round 2"):
        run(tmp_path, grid, deadline_s=0.2, patience_s=0.5)
    assert "it belongs to another run" in caplog.text
    (path,) = (tmp_path / "out").glob("*/*")
    # What was certified before is there.
    assert len(list(Audit(path, recompute=True).rounds())) == 1
