"""The driver and the clock: one timer per name, and no wait longer than necessary."""

from __future__ import annotations

import asyncio

from fedrfq.consensus.events import (
    Effect,
    Event,
    Expired,
    Received,
    SetTimer,
    Start,
    Submit,
    Timer,
)
from fedrfq.node.driver.driver import GRACE_MS
from support.scripted import RULES, World, quiet, run, word


def test_timers_ring_stop_and_start_anew() -> None:
    async def test() -> None:
        plans = iter(
            [
                [SetTimer(Timer.VIEW, 1), SetTimer(Timer.RESEND, 1), SetTimer(Timer.DEADLINE, 1)],
                [SetTimer(Timer.VIEW, None), SetTimer(Timer.RESEND, 600_000)],
            ]
        )
        world = World(lambda event: next(plans, []))
        world.driver.give(Start())
        world.driver.give(Submit(1, b""))
        await asyncio.sleep(0.05)
        assert world.machine.events == [Start(), Submit(1, b""), Expired(Timer.DEADLINE)]
        world.driver.stop()

    run(test())


def test_a_timer_that_another_ones_ringing_stops_does_not_ring() -> None:
    """Both had run out, but by then the machine has moved on."""

    async def test() -> None:
        def answer(event: Event) -> list[Effect]:
            delay = 0 if type(event) is Start else None
            return [SetTimer(Timer.VIEW, delay), SetTimer(Timer.DEADLINE, delay)]

        world = World(answer)
        world.driver.give(Start())
        await asyncio.sleep(0.05)
        assert len(world.machine.events) == 2

    run(test())


def test_a_timer_that_has_run_out_comes_before_messages_that_would_set_it_anew() -> None:
    async def test() -> None:
        world = World(lambda event: [SetTimer(Timer.VIEW, 600_000)])
        world.driver.give(Start())
        await quiet()
        world.driver.hear(1, word().wire)
        world.driver.timers.expire(Timer.VIEW)
        await quiet()
        assert [type(event) for event in world.machine.events] == [Start, Expired, Received]

    run(test())


def test_a_view_whose_leader_is_not_connected_is_given_up_soon() -> None:
    async def test() -> None:
        world = World(
            lambda event: [] if isinstance(event, Expired) else [SetTimer(Timer.VIEW, 600_000)]
        )
        world.driver.leader = lambda: 2
        world.here.discard(2)
        world.driver.give(Start())
        while Expired(Timer.VIEW) not in world.machine.events:
            await asyncio.sleep(0.001)

    run(test())


def test_a_view_whose_leader_goes_is_given_up_soon_and_no_other() -> None:
    async def test() -> None:
        world = World(
            lambda event: [] if isinstance(event, Expired) else [SetTimer(Timer.VIEW, 600_000)]
        )
        world.driver.leader = lambda: 2
        world.driver.give(Start())
        await quiet()
        view = world.driver.timers.running[Timer.VIEW]
        world.driver.peer_left(1)
        world.driver.peer_left(~0)
        assert world.driver.timers.running[Timer.VIEW] is view
        world.driver.peer_left(2)
        assert view.cancelled()
        while Expired(Timer.VIEW) not in world.machine.events:
            await asyncio.sleep(0.001)
        world.driver.peer_left(2)
        await quiet()
        assert world.machine.events.count(Expired(Timer.VIEW)) == 1

    run(test())


def test_what_a_peer_has_missed_is_said_again_soon_after_it_comes() -> None:
    async def test() -> None:
        delays = iter([16_000, 10])
        world = World(lambda event: [SetTimer(Timer.RESEND, next(delays))])
        world.driver.peer_joined()
        assert not world.driver.timers.running
        world.driver.give(Start())
        await quiet()
        world.driver.peer_joined()
        soon = world.driver.timers.running[Timer.RESEND]
        first = asyncio.get_running_loop().time() + RULES.roster.resend_ms / 1000
        assert soon.when() <= first
        world.driver.peer_joined()
        assert world.driver.timers.running[Timer.RESEND] is soon
        world.driver.give(Start())
        await quiet()
        sooner = world.driver.timers.running[Timer.RESEND]
        world.driver.peer_joined()
        assert world.driver.timers.running[Timer.RESEND] is sooner
        world.driver.stop()

    run(test())


def test_nobody_waits_longer_or_shorter_for_himself() -> None:
    async def test() -> None:
        delays = iter([600_000, 1])
        world = World(
            lambda event: [] if isinstance(event, Expired) else [SetTimer(Timer.VIEW, next(delays))]
        )
        world.driver.leader = lambda: 0
        world.driver.give(Start())
        await quiet()
        assert (
            world.driver.timers.running[Timer.VIEW].when() > asyncio.get_running_loop().time() + 300
        )
        world.driver.leader = lambda: 2
        world.here.discard(2)
        world.driver.give(Start())
        world.driver._turn()
        soon = asyncio.get_running_loop().time() + GRACE_MS / 2000
        assert world.driver.timers.running[Timer.VIEW].when() < soon
        world.driver.stop()

    run(test())
