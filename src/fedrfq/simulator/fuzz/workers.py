"""Worker processes for a queue of calls; they end with the process that started them."""

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
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def workers(jobs: int) -> Iterator[Executor]:
    """Start this many processes, and end them afterwards.

    If one of them dies, the block ends with a `UserError` instead of waiting forever.
    """
    before = set(active_children())
    # Forking is fast, but only safe on Linux.
    method = "fork" if sys.platform == "linux" else "spawn"
    pool = ProcessPoolExecutor(jobs, get_context(method), initializer=_set_up_worker)
    try:
        # Make the pool fork now: later a progress bar's thread runs, and forking is not safe.
        pool.submit(int).result()
        yield pool
    except BrokenProcessPool:
        raise UserError(
            "a worker process died (killed, or out of memory); "
            "run the same command again to continue from --out, with fewer --jobs if it repeats"
        ) from None
    finally:
        # A pool that is shut down waits for its workers, and a schedule may take long: end them.
        for process in set(active_children()) - before:
            process.terminate()
        pool.shutdown(cancel_futures=True)


def in_order(
    pool: Executor, jobs: int, work: Callable[[Call], Answer], calls: Iterable[Call]
) -> Iterator[Answer]:
    """Yield the answers in the order of the calls.

    At most two calls per process are begun and not yet yielded, so that memory stays bounded.
    """
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


def _set_up_worker() -> None:
    """Leave Ctrl-C to the parent process, tune the garbage collector, and end with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Imported modules stay, and schedules make many objects but few cycles: collect rarely.
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    # Not sys.exit, which in a thread ends only the thread.
    os._exit(1)
