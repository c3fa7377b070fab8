"""Processes that work through a queue of calls, and end with the one that started them, whatever ends it."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from threading import Thread
from typing import TypeVar

from fedrfq.errors import UserError

Call = TypeVar("Call")
Answer = TypeVar("Answer")


def cores() -> int:
    """Those this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def workers(jobs: int) -> Iterator[Executor]:
    """So many processes. One that dies (killed, or out of memory) is an error here, and nothing waits for it."""
    before = set(active_children())
    pool = ProcessPoolExecutor(
        jobs, get_context("fork" if sys.platform == "linux" else "spawn"), initializer=_follow
    )
    try:
        pool.submit(int).result()  # forks now, while no progress bar's thread is running
        yield pool
    except BrokenProcessPool:
        raise UserError(
            "a worker process died (killed, or out of memory): the same command goes on from what --out holds; "
            "try fewer --jobs if it happens again"
        ) from None
    finally:
        for process in set(active_children()) - before:
            process.terminate()
        pool.shutdown(cancel_futures=True)


def in_order(
    pool: Executor, jobs: int, work: Callable[[Call], Answer], calls: Iterable[Call]
) -> Iterator[Answer]:
    """The answers in the calls' order; at most two calls a process are begun and not yet handed out."""
    begun: deque[Future[Answer]] = deque()
    try:
        for call in calls:
            begun.append(pool.submit(work, call))
            if len(begun) >= 2 * jobs:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        for future in begun:
            future.cancel()


def _follow() -> None:
    """In a worker: Ctrl-C is the parent's to answer, and where the parent is gone there is nothing left to do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.freeze()  # what was imported stays; schedules make many objects and few cycles
    gc.set_threshold(100_000, 20, 20)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
