"""The clients of `loadclient`, spread over several processes.

Where each server has a core of its own, a single process of clients would be the bottleneck.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from loadclient import Crowd


class Stretch(NamedTuple):
    """Some rounds, as the clients of one process saw them."""

    # When the first of them knew the last round's decision, by `time.perf_counter`, which all
    # processes of a machine share.
    decided_at: float
    # How long each client waited in each round.
    latencies: list[float]


class Crowds:
    """All clients of a federation, spread over `processes` processes.

    `until` is the last round for which they were told to send uploads.
    """

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

    @property
    def pids(self) -> list[int]:
        """The processes' ids."""
        return [process.pid for process in self._processes if process.pid is not None]

    async def connect(self) -> None:
        """Wait until all clients are connected to all servers; by then their uploads are signed."""
        await self._all(None)

    async def go(self, rounds: int) -> list[Stretch]:
        """Run `rounds` more rounds, until all clients have seen the last one decided."""
        self.until += rounds
        return await self._all(self.until)

    def stop(self) -> None:
        """Terminate the processes."""
        for process in self._processes:
            process.terminate()
            process.join()

    async def _all(self, until: int | None) -> list[Stretch]:
        for pipe in self._pipes:
            pipe.send(until)
        return await asyncio.gather(*(asyncio.to_thread(_answer, pipe) for pipe in self._pipes))


def _answer(pipe: Connection) -> Stretch:
    answer = pipe.recv()
    # A process reports a failed check as its message.
    if isinstance(answer, str):
        raise AssertionError(answer)
    assert isinstance(answer, Stretch)
    return answer


def _work(folder: Path, clients: Sequence[int], rounds: int, pipe: Connection) -> None:
    asyncio.run(_speak(Crowd(folder, clients, rounds), pipe))


async def _speak(crowd: Crowd, pipe: Connection) -> None:
    """Serve the requests of the parent until the process is terminated."""
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
