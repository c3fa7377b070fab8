"""Whose code failed: find a plugin's line in the traceback of an error."""

from __future__ import annotations

from pathlib import Path

from fedrfq.plugins.files import MODULE_PREFIX
from fedrfq.plugins.packages import installed


def failing_line(error: BaseException) -> str:
    """Return the plugin's file and line that an error came from; "" if no plugin's code failed.

    It is the innermost one: what a plugin calls may fail because of what the plugin gave it.
    """
    packages = {entry.module.split(".")[0] for entry in installed()}
    found = ""
    trace = error.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if module.startswith(MODULE_PREFIX) or module.split(".")[0] in packages:
            found = f"{Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return found
