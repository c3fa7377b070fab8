"""Child processes that never outlive their parent, however it ends; their output goes to a file."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

# The option of Linux's prctl(2) that has the kernel signal a process when its parent dies.
_PR_SET_PDEATHSIG = 1
# Each child computes with one thread, since there are many children.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# How long a child that was asked to stop has before it is killed.
_STOP_S = 30.0
_MAX_READ_BYTES = 1 << 20


class Child:
    """A command that can be started, killed, paused and started again."""

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
        self.environment = {
            **os.environ,
            **dict.fromkeys(_THREAD_VARIABLES, "1"),
            **(environment or {}),
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        # Positions in the output file: up to where it was read, and where this start began.
        self.read = 0
        self._start_position = 0

    def start(self) -> None:
        """Start the command; what it prints is appended to the output file."""
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with self.output.open("ab") as output:
            self._start_position = output.tell()
            if not self.starts:
                # What is in the file already is from an earlier parent.
                self.read = self._start_position
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment,
                # In a session of its own, Ctrl-C in the terminal reaches only the parent.
                start_new_session=True,
                preexec_fn=_die_with(os.getpid()),
            )
        self.starts += 1

    @property
    def pid(self) -> int:
        """Return the process id of the latest start."""
        assert self.process is not None, f"{self.name} was never started"
        return self.process.pid

    @property
    def running(self) -> bool:
        """Return whether the process has been started and has not ended."""
        return self.process is not None and self.process.poll() is None

    @property
    def code(self) -> int | None:
        """Return the exit code, or None if the process runs or was never started."""
        if self.process is None:
            return None
        return self.process.poll()

    def signal(self, number: int) -> None:
        """Send a signal to the process and all that it has started, unless it has ended."""
        if self.running:
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """Kill the process at once, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def pause(self) -> None:
        """Stop the process until `resume`."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process run again."""
        self.signal(signal.SIGCONT)

    @property
    def spoke(self) -> bool:
        """Return whether the process runs and has printed anything since its latest start."""
        return self.running and self.output.stat().st_size > self._start_position

    def said(self) -> list[str]:
        """Return the lines that the child has completed since this was last called."""
        if not self.output.exists():
            return []
        with self.output.open("rb") as output:
            output.seek(self.read)
            complete, newline, _ = output.read(_MAX_READ_BYTES).rpartition(b"\n")
        self.read += len(complete) + len(newline)
        return complete.decode(errors="replace").splitlines()


def stop(children: Sequence[Child], patience_s: float = _STOP_S) -> list[str]:
    """Stop all children cleanly; return the names of those that had to be killed."""
    for child in children:
        # A paused process would not handle SIGTERM.
        child.resume()
        child.signal(signal.SIGTERM)
    stubborn = [child for child in children if not _ended(child, patience_s)]
    for child in stubborn:
        child.kill()
    return [child.name for child in stubborn]


def fedrfq_command(*arguments: object) -> list[str]:
    """Return a command of this program, run by the Python that runs this one."""
    # -P: nothing is imported from the current folder, which may be anybody's.
    return [sys.executable, "-P", "-m", "fedrfq.cli", *map(str, arguments)]


def _ended(child: Child, patience_s: float) -> bool:
    if child.process is None:
        return True
    try:
        child.process.wait(patience_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _die_with(parent: int) -> Callable[[], None] | None:
    """Return what a child runs before its command so that the kernel kills it with its parent.

    Only Linux can do that; elsewhere this is None.
    """
    if not sys.platform.startswith("linux"):
        return None
    # Looked up here: after the fork only what is safe in a threaded parent may be called.
    prctl = ctypes.CDLL(None).prctl

    def bind() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # The parent may have died before prctl was called, and then no signal comes.
        if os.getppid() != parent:
            os._exit(1)

    return bind
