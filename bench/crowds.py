"""The crowd of `loadclient` in several processes: where servers have a core each, a single one would be what is measured."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from loadclient import Crowd


class Stretch(NamedTuple):
    """Some rounds, as the clients of one process saw them: when one first knew the last decided, and how long each waited."""

    decided_at: float  # by `time.perf_counter`, which all processes of a machine share
    latencies: list[float]


class Crowds:
    """All clients of a federation, dealt out to so many processes. `until` is the last round they were told to speak in."""

    def __init__(self, folder: Path, clients: int, rounds: int, processes: int) -> None:
        self.until = 0
        self._pipes = list[Connection]()
        self._processes = list[multiprocessing.process.BaseProcess]()
        spawn = multiprocessing.get_context("spawn")
        for first in range(processes):
            ours, theirs = spawn.Pipe()
            arguments = folder, range(first, clients, processes), rounds, theirs
            process = spawn.Process(target=_work, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    async def connect(self) -> None:
        """All of them, to all servers; their uploads are signed by then."""
        await self._all(None)

    async def go(self, rounds: int) -> list[Stretch]:
        """So many rounds more, until all clients have seen the last decided."""
        self.until += rounds
        return await self._all(self.until)

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
            process.join()

    async def _all(self, until: int | None) -> list[Stretch]:
        for pipe in self._pipes:
            pipe.send(until)
        return await asyncio.gather(*(asyncio.to_thread(_answer, pipe) for pipe in self._pipes))


def _answer(pipe: Connection) -> Stretch:
    found = pipe.recv()
    if isinstance(found, str):
        raise AssertionError(found)
    assert isinstance(found, Stretch)
    return found


def _work(folder: Path, clients: Sequence[int], rounds: int, pipe: Connection) -> None:
    asyncio.run(_speak(Crowd(folder, clients, rounds), pipe))


async def _speak(crowd: Crowd, pipe: Connection) -> None:
    """What is asked for, until it is terminated."""
    await crowd.start()
    while True:
        until = await asyncio.to_thread(pipe.recv)
        try:
            pipe.send(await _stretch(crowd, until))
        except AssertionError as error:
            pipe.send(str(error))


async def _stretch(crowd: Crowd, until: int | None) -> Stretch:
    if until is None:
        await crowd.all_connected()
        return Stretch(0.0, [])
    crowd.latencies.clear()
    crowd.go(until)
    await crowd.reached(until)
    return Stretch(crowd.seen_at[until], list(crowd.latencies))
