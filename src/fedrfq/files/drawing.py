"""Pictures without a display."""

from __future__ import annotations

from typing import Any


def pyplot() -> Any:
    """Import pyplot without a display, and only when a picture is drawn: it takes a while."""
    import matplotlib

    # Before pyplot is imported, which would otherwise look for a display.
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    return plt
