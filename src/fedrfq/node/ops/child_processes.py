"""Processes that never outlive the one that started them, whatever ends it; what they say goes to a file."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_PARENT_DIED = 1  # prctl's PR_SET_PDEATHSIG
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_PATIENCE_S = 30.0  # for a process that was asked to stop
_MOST_SAID = 1 << 20  # bytes of its output that are read at once


class Child:
    """A command that is started, killed, paused and started again. One thread is enough for it: there are many."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        output: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.output = output
        self.environment = {**os.environ, **dict.fromkeys(_THREADS, "1"), **(environment or {})}
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = self.read = self._before = 0

    def start(self) -> None:
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with self.output.open("ab") as output:
            self._before = output.tell()
            if not self.starts:
                self.read = self._before  # what is there was said in earlier lives
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,  # Ctrl-C is the parent's to hear
                preexec_fn=_dies_with(os.getpid()),
            )
        self.starts += 1

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} was never started"
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def code(self) -> int | None:
        """Its exit code, once it has ended by itself."""
        if self.process is None:
            return None
        return self.process.poll()

    def signal(self, number: int) -> None:
        """To it and all it has started; nothing if it has ended."""
        if self.running:
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """At once, wherever it is."""
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    @property
    def spoke(self) -> bool:
        """Whether it has said anything in this life."""
        return self.running and self.output.stat().st_size > self._before

    def said(self) -> list[str]:
        """The whole lines it has written since this was last asked."""
        if not self.output.exists():
            return []
        with self.output.open("rb") as output:
            output.seek(self.read)
            whole, newline, _ = output.read(_MOST_SAID).rpartition(b"\n")
        self.read += len(whole) + len(newline)
        return whole.decode(errors="replace").splitlines()


def stop(children: Sequence[Child], patience_s: float = _PATIENCE_S) -> list[str]:
    """All of them, cleanly; the names of those that had to be killed."""
    for child in children:
        child.resume()
        child.signal(signal.SIGTERM)
    stubborn = [child for child in children if not _ended(child, patience_s)]
    for child in stubborn:
        child.kill()
    return [child.name for child in stubborn]


def fedrfq_command(*arguments: object) -> list[str]:
    """A command of this program."""
    return [sys.executable, "-m", "fedrfq.cli", *map(str, arguments)]


def _ended(child: Child, patience_s: float) -> bool:
    if child.process is None:
        return True
    try:
        child.process.wait(patience_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _dies_with(parent: int) -> Callable[[], None] | None:
    """What a child does before its command, where the system can end it with its parent."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl

    def bind() -> None:
        prctl(_PARENT_DIED, signal.SIGKILL)
        if os.getppid() != parent:  # it died in between
            os._exit(1)

    return bind
