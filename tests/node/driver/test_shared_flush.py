"""The driver and the disk: persist before sending, share flushes, and stop when a flush fails."""

from __future__ import annotations

import asyncio

from fedrfq.consensus.events import (
    Decided,
    Effect,
    Persist,
    Publish,
    Send,
    SetTimer,
    Start,
    Submit,
    Timer,
)
from fedrfq.consensus.messages import (
    Cert,
    Certificate,
    Commit,
    Fetch,
    Kind,
    Message,
    Part,
    PartKind,
    Receipt,
    Upload,
)
from support.cluster import key, signer
from support.scripted import CERTIFICATE, RULES, World, quiet, run, word

UPLOAD = RULES.signed(Upload(1, 0, b"content"), signer(key("client", 0)))
RECEIPT = RULES.signed(Receipt(1, 0, 0, UPLOAD.digest), signer(key("server", 0)))
PROOF = RULES.unsigned(Cert(1, CERTIFICATE))
STORED: list[Effect] = [Persist(UPLOAD), Send(~0, RECEIPT)]
SETTLED: list[Effect] = [
    Persist(PROOF),
    Publish(PROOF),
    Decided(CERTIFICATE, None, ()),
    SetTimer(Timer.VIEW, None),
]


def played(*batches: list[Effect]) -> World:
    """Return a world in which these batches have been carried out, one after the other."""
    plans = iter(batches)
    world = World(lambda event: next(plans))
    world.driver.on_decided = lambda decided: world.story.append(("decided",))
    for _ in batches:
        world.driver.give(Start())
        world.driver._turn()
    return world


def steps(world: World) -> list[str]:
    """Return the names of what was asked of the disk and the wires, in order."""
    return [what[0] for what in world.story]


def test_a_batch_is_flushed_once_and_before_anything_of_it_is_said() -> None:
    async def test() -> None:
        message = word()
        world = World(
            lambda event: [
                Send(1, message),
                Persist(message),
                Send(2, message),
                SetTimer(Timer.VIEW, None),
            ]
        )
        world.driver.on_waiting = lambda waiting: world.story.append(("waiting",))
        for _ in range(3):
            world.driver.give(Start())
        await quiet()
        assert [what[0] for what in world.story] == ["append"] * 3 + ["flush"] + ["send"] * 6
        assert [to for to, _ in world.sent()] == [1, 2] * 3
        assert world.driver.flush.count == 1

    run(test())


def test_nothing_is_flushed_where_nothing_must_be_kept() -> None:
    async def test() -> None:
        world = World(lambda event: [Send(1, word())])
        world.driver.give(Start())
        await quiet()
        assert [what[0] for what in world.story] == ["send"]

    run(test())


def test_uploads_wait_for_one_flush() -> None:
    async def test() -> None:
        world = played(STORED, STORED)
        assert not world.story
        while len(world.story) < 3:
            await asyncio.sleep(0.001)
        assert steps(world) == ["append", "append", "flush"]
        assert steps(played(STORED, [Persist(word()), Send(1, word())])) == ["append"] * 2 + [
            "flush",
            "send",
        ]

    run(test())


def test_a_decision_is_not_waited_for_as_long_as_uploads_may_be() -> None:
    async def test() -> None:
        world = played(STORED)
        uploads = world.driver.flush.timer
        world.driver.flush.carry_out(SETTLED)
        decision = world.driver.flush.timer
        assert uploads is not None
        assert uploads.cancelled()
        assert decision is not None
        assert decision.when() < uploads.when()
        world.driver.flush.carry_out(STORED)
        assert world.driver.flush.timer is decision
        world.driver.stop()

    run(test())


def test_receipts_are_given_before_their_clients_would_repeat_themselves() -> None:
    async def test() -> None:
        world = played(STORED, STORED)
        delay = world.driver.outbox.receipts._delay_s
        assert 0 < delay < RULES.roster.resend_ms / 1000
        world.driver.outbox.receipts._delay_s = 0.001
        while len(world.story) < 4:
            await asyncio.sleep(0.001)
        assert steps(world) == ["append", "append", "flush", "send"]
        assert world.sent() == [(~0, RECEIPT.wire)]

    run(test())


def test_no_receipt_is_given_once_its_round_is_decided() -> None:
    async def test() -> None:
        later = RULES.signed(Receipt(2, 0, 0, UPLOAD.digest), signer(key("server", 0)))
        world = World()
        world.driver.outbox.receipts._delay_s = 0.001
        for receipt in (RECEIPT, later):
            world.driver.outbox.receipts.owe(Send(~0, receipt))
        world.driver.flush.carry_out([*SETTLED, Persist(word())])
        certificates = len(world.sent())
        while len(world.sent()) == certificates:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        assert world.sent()[certificates:] == [(~0, later.wire)]

    run(test())


def test_no_receipt_is_given_after_the_end() -> None:
    async def test() -> None:
        worlds = [World(), World()]
        for world in worlds:
            world.driver.outbox.receipts._delay_s = 0.001
            world.driver.outbox.receipts.owe(Send(~0, RECEIPT))
        worlds[0].driver.stop()
        worlds[1].driver.fail("elsewhere")
        await asyncio.sleep(0.01)
        assert not worlds[0].story + worlds[1].story

    run(test())


def test_a_certificate_is_published_at_once_and_reported_when_it_is_kept() -> None:
    async def test() -> None:
        world = played(SETTLED)
        assert set(steps(world)) == {"send"}
        published = len(world.story)
        assert {data for _, data in world.sent()} == {PROOF.wire}
        while len(world.story) < published + 3:
            await asyncio.sleep(0.001)
        assert steps(world)[published:] == ["append", "flush", "decided"]

    run(test())


def test_a_certificate_with_a_vote_that_is_not_kept_yet_is_published_after_the_flush() -> None:
    async def test() -> None:
        vote = RULES.signed(Commit(1, 0, bytes(32), 0), signer(key("server", 0)))
        story = steps(played([Persist(vote), *SETTLED]))
        assert story[:3] == ["append", "append", "flush"]
        assert "send" in story[3:]
        prepared = RULES.unsigned(Cert(1, Certificate(Kind.PREPARE, 0, CERTIFICATE.record, ())))
        assert steps(played([Persist(prepared), Publish(PROOF)]))[:2] == ["append", "flush"]

    run(test())


def test_what_waits_is_carried_out_at_a_stop_and_not_when_nothing_can_be_kept() -> None:
    async def test() -> None:
        world = played(STORED)
        world.driver.stop()
        assert steps(world) == ["append", "flush"]
        world = played(STORED)
        world.full = True
        world.driver.stop()
        assert (steps(world), world.driver.failed) == (["append"], "no room")
        world = played(STORED)
        world.driver.fail("elsewhere")
        world.driver.stop()
        assert not world.story

    run(test())


def test_what_cannot_be_kept_is_never_said_and_nothing_after_it() -> None:
    async def test() -> None:
        message = word(7)
        world = World(
            lambda event: [Send(1, message), Persist(message), SetTimer(Timer.VIEW, 0), decision]
        )
        reported = []
        decision = Decided(CERTIFICATE, None, ())
        world.driver.on_failed = reported.append
        world.driver.on_decided = lambda decided: reported.append("decided")
        world.driver.flush.on_persisted = lambda message: reported.append("persisted")
        world.full = True
        world.driver.give(Start())
        await quiet()
        assert world.driver.failed == "no room"
        assert reported == ["no room"]
        world.full = False
        world.driver.give(Submit(1, b""))
        world.driver.hear(1, word().wire)
        await quiet()
        assert not world.sent()
        assert world.machine.events == [Start()]

    run(test())


def test_whoever_cannot_keep_anything_still_answers_what_its_owner_allows() -> None:
    async def test() -> None:
        message = word()
        answer = RULES.unsigned(Part(1, PartKind.SET, b"\0\0\0\0"))
        world = World(lambda event: [Persist(message)])
        asked: list[Fetch] = []

        def answer_first(fetch: Fetch) -> Message | None:
            asked.append(fetch)
            if fetch.round != 1:
                return None
            return answer

        world.driver.answer = answer_first
        world.full = True
        world.driver.give(Start())
        await quiet()
        for round_ in (1, 2):
            world.driver.hear(2, word(round_).wire)
        world.driver.hear(2, answer.wire)
        await quiet()
        assert [fetch.round for fetch in asked] == [1, 2]
        assert world.sent() == [(2, answer.wire)]

    run(test())
