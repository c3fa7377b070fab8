"""Starts the program: imports it, and runs it."""

from __future__ import annotations

import signal


def start() -> None:
    """Import the program and run it; Ctrl-C while it is imported ends the process without a word.

    Nothing is there to clean up that early, and Python would print a traceback of its imports.
    """
    interrupt = signal.getsignal(signal.SIGINT)
    # A process that was started to ignore Ctrl-C, such as a shell's background job, goes on so.
    if interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from fedrfq.cli.main import main

    signal.signal(signal.SIGINT, interrupt)
    main()
