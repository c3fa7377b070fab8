"""The load generator can be stopped while it waits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from loadclient import Crowd
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
