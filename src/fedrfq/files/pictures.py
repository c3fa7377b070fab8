"""Pictures by matplotlib, which is imported only when one is drawn: it takes a while.

They are drawn without pyplot: no window is looked for, nothing is left open, and any thread may.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from fedrfq.files.atomic import write_atomically


def subplots(size: tuple[float, float], down: int = 1, across: int = 1) -> tuple[Any, Any]:
    """Return a figure of so many inches, and its axes, down × across."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(down, across, squeeze=False)


def png(figure: Any, dpi: int = 150) -> bytes:
    """Return a figure as PNG."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=dpi, format="png")
    return drawn.getvalue()


def save_png(figure: Any, path: Path) -> Path:
    """Write a figure as PNG, and return the path."""
    write_atomically(path, png(figure))
    return path
