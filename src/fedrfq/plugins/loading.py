"""Running a plugin's code: what registers meanwhile belongs to it, and errors become one line."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from fedrfq.errors import UserError
from fedrfq.plugins.known import Plugin

# The plugin that is being loaded, outermost first: what registers now belongs to the last.
LOADING: list[Plugin] = []
# After so many seconds a note says what is being waited for.
PATIENCE_S = 10.0


@contextmanager
def loading(plugin: Plugin, where: str) -> Iterator[None]:
    """Let what registers belong to the plugin; an error in its code becomes one line."""
    LOADING.append(plugin)
    note = threading.Timer(PATIENCE_S, _say_where, [where, threading.get_ident()])
    note.daemon = True
    note.start()
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    # A plugin that ends the program is an error in it as well.
    except (Exception, SystemExit) as error:
        raise UserError(
            f"{where}{line_in(error, where)}: {type(error).__name__}: {error}"
        ) from error
    finally:
        note.cancel()
        LOADING.pop()


def check_not_loading() -> None:
    """Refuse to train while a file is read only for what it registers."""
    if LOADING:
        raise UserError(
            'the file trains as it is read: put what trains below `if __name__ == "__main__":`'
        )


def _say_where(where: str, thread: int) -> None:
    """Say on which line a plugin is that takes long to load."""
    frame: FrameType | None = sys._current_frames().get(thread)
    line = ""
    while frame is not None and not line:
        if frame.f_code.co_filename == where:
            line = f" in line {frame.f_lineno}"
        frame = frame.f_back
    print(f"note: still loading {where}{line}; Ctrl-C stops", file=sys.stderr, flush=True)


def place_in(error: BaseException, where: str) -> str:
    """Return the file and line that an error passed through last, as "FILE, line N: "."""
    line = line_in(error, where) if where else ""
    return f"{Path(where).name}{line}: " if line else ""


def line_in(error: BaseException, where: str) -> str:
    """Return the last line of the file that an error passed through, as ", line N"."""
    found = ""
    if isinstance(error, SyntaxError) and error.filename == where:
        found = f", line {error.lineno}"
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == where:
            found = f", line {trace.tb_lineno}"
        trace = trace.tb_next
    return found
