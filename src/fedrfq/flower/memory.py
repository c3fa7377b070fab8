"""Keeps freed memory in the process.

A node needs in every round what it freed in the round before. glibc gives large pieces back to the
system, and fetching them again, page by page, takes up to a tenth of a round.
"""

from __future__ import annotations

import ctypes

# The numbers of the parameters in malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
# Bytes of freed memory that stay with the process.
_MAX_KEPT = 1 << 28
# Pieces larger than this are mapped, and so given back; glibc accepts no larger threshold.
_MAX_PIECE = 1 << 25


def keep_freed() -> None:
    """Keep freed memory from now on; does nothing with a C library other than glibc."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_MMAP_THRESHOLD, _MAX_PIECE)
        mallopt(_TRIM_THRESHOLD, _MAX_KEPT)
