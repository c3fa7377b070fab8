"""A server's list goes to the leader at once, and to the others with what is said next."""

from __future__ import annotations

import asyncio

from fedrfq.consensus.events import Broadcast, Submit
from fedrfq.consensus.messages import Prepare, UploadList
from support.cluster import key, signer
from support.scripted import RULES, World, quiet, run

SIGN = signer(key("server", 0))
LIST = RULES.signed(UploadList(1, 0, ()), SIGN)
VOTE = RULES.signed(Prepare(1, 0, bytes(32), 0), SIGN)


def world(leader: int) -> World:
    """Return server 0, which says its list and then, when told so, its vote."""
    plans = iter([[Broadcast(LIST)], [Broadcast(VOTE)]])
    made = World(lambda event: next(plans, []))
    made.driver.leader = lambda: leader
    made.driver.give(Submit(1, b""))
    made.driver._turn()
    return made


def vote(made: World) -> None:
    made.driver.give(Submit(1, b""))
    made.driver._turn()


def to(made: World, data: bytes) -> list[int]:
    """Return who has been sent this so far."""
    return [peer for peer, sent in made.sent() if sent == data]


def test_a_list_goes_to_the_leader_and_to_the_others_with_the_next_message() -> None:
    async def test() -> None:
        made = world(leader=1)
        assert made.sent() == [(1, LIST.wire)]
        vote(made)
        assert to(made, LIST.wire) == [1, 2, 3]
        assert to(made, VOTE.wire) == [1, 2, 3]
        # In one write for each, because both are queued in one turn; and before the vote.
        assert [sent for peer, sent in made.sent() if peer == 3] == [LIST.wire, VOTE.wire]
        assert not made.driver.outbox._held

    run(test())


def test_the_leader_itself_has_time_until_it_proposes() -> None:
    async def test() -> None:
        made = world(leader=0)
        assert not made.sent()
        vote(made)
        assert to(made, LIST.wire) == [1, 2, 3]

    run(test())


def test_a_list_waits_for_a_small_part_of_the_views_time() -> None:
    """However long nothing else is said, as with a leader that is silent."""

    async def test() -> None:
        made = world(leader=1)
        waits = made.driver.outbox._hold_timer
        assert waits is not None
        left_s = waits.when() - asyncio.get_running_loop().time()
        assert left_s <= RULES.roster.timeout_ms(0) / 1000 / 40
        while len(made.sent()) < 3:
            await asyncio.sleep(0.001)
        assert to(made, LIST.wire) == [1, 2, 3]

    run(test())


def test_without_the_leader_everybody_is_sent_the_list_at_once() -> None:
    """It lets them start the view's timer, and so leave the view soon."""

    async def test() -> None:
        plans = iter([[Broadcast(LIST)]])
        made = World(lambda event: next(plans, []))
        made.driver.leader = lambda: 2
        made.here.discard(2)
        made.driver.give(Submit(1, b""))
        await quiet()
        assert to(made, LIST.wire) == [1, 2, 3]

    run(test())


def test_no_list_is_sent_after_the_end() -> None:
    async def test() -> None:
        stopped = world(leader=1)
        stopped.driver.stop()
        failed = world(leader=1)
        failed.driver.fail("no room")
        await asyncio.sleep(2 * RULES.roster.timeout_ms(0) / 1000 / 40)
        assert to(stopped, LIST.wire) == to(failed, LIST.wire) == [1]

    run(test())
