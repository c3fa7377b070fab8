"""The load generator can be stopped while it waits, and goes on where it was."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from loadclient import Crowd, noted
from testbed import founded


def test_a_crowd_stops_even_if_a_server_refuses_at_that_very_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(folder: Path) -> None:
        crowd = Crowd(folder, range(3))
        dialled = asyncio.Semaphore(0)
        refused = asyncio.Event()

        async def dial(*_: Any, **__: Any) -> None:
            dialled.release()
            await refused.wait()
            raise ConnectionRefusedError

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", dial)
        await crowd.start()
        for _ in range(3 * 4):
            await dialled.acquire()
        refused.set()
        # Now the dialling tasks know of the refusal, and those who wait for them do not.
        await asyncio.sleep(0)
        stopping = asyncio.ensure_future(crowd.stop())
        _, hanging = await asyncio.wait({stopping}, timeout=5)
        for task in crowd._tasks:
            task.cancel()
        assert not hanging

    with founded(3, [1, 2, 3, 4]) as folder:
        asyncio.run(scene(folder))


def test_clients_that_are_started_again_go_on_after_the_rounds_that_they_noted(
    tmp_path: Path,
) -> None:
    """From round 1 on they would ask for each round since, while the others wait for them."""
    record = tmp_path / "seen.jsonl"
    assert not list(noted(record))
    # The second line was cut short by a kill.
    record.write_text('{"round": 7, "value": "a"}\n{"rou{"round": 8, "value": "b"}\n')
    assert list(noted(record)) == [(7, "a")]
    with founded(3, [1, 2, 3, 4]) as folder:
        crowd = Crowd(folder, range(3))
        crowd.resume(7)
        assert [speaker.round for speaker in crowd.speakers] == [8, 8, 8]
