"""Peak memory of whole commands: what `make run` runs, and 1,000 clients on the CPU.

    python bench/memory.py

The figure is the peak resident size of the process, as the kernel counts it. The 1,000 clients
share samples of `mnist5k`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time

from rich.console import Console
from rich.table import Table

COMMANDS = {
    "make run (20 clients, 100 rounds)": ["examples/quickstart.toml"],
    "1,000 clients, 2 rounds": [
        "--set=clients=1000",
        "--set=partition.share=true",
        "--set=rounds=2",
    ],
}


def peak(arguments: list[str]) -> tuple[float, float]:
    """Return the peak GiB and the seconds of one run of the command."""
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, "-m", "fedrfq.cli", "run"]
        command = [*program, *arguments, "--device", "cpu", "--out", folder]
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed with status {status}")
    return usage.ru_maxrss / 2**20, time.perf_counter() - began


def main() -> None:
    """Run all commands and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    table = Table("command", "peak GiB", "seconds")
    for name, arguments in COMMANDS.items():
        gib, took = peak(arguments)
        table.add_row(name, f"{gib:.2f}", f"{took:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
