"""A node keeps the memory that it frees, instead of fetching it from the system again."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

pytest.importorskip("flwr")

from fedrfq.flower import memory

# Allocates pieces as large as evaluation does, frees them, allocates them again, and prints how
# many pages that fetched.
SCRIPT = """
import resource
from fedrfq.flower.memory import keep_freed

def taken():
    pieces = [bytearray(b"1") * (20 << 20) for _ in range(4)]
    del pieces

keep_freed()
taken()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
taken()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others keep memory as they do")
def test_large_pieces_that_were_freed_are_kept() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True
    )
    # The pieces have 20,480 pages.
    assert int(done.stdout) < 200


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: object())
    memory.keep_freed()
