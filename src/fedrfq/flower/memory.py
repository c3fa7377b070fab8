"""Memory that was freed stays with the process. A node needs in every round what it freed in the round before; glibc gives
large pieces back to the system, and fetching them anew, page by page, takes up to a tenth of a round."""

from __future__ import annotations

import ctypes

# as malloc.h numbers them
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
# bytes: kept at most, and of a piece, the most that glibc takes for it
_KEPT = 1 << 28
_LARGEST = 1 << 25


def keep_freed() -> None:
    """From now on. Another C library goes on as before."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_MMAP_THRESHOLD, _LARGEST)
        mallopt(_TRIM_THRESHOLD, _KEPT)
