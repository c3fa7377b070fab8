"""Draw docs/images/adaptive.svg: whom the adaptive detector accuses, and what it limits.

    python bench/adaptive_picture.py --out docs/images/adaptive.svg

The numbers are computed by the detector and its rule; only the places of the clients are chosen.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedrfq.prototypes.fixed_point import FRACTION_BITS, Globals, Ints, Uploads
from fedrfq.robust.detectors.disagreement import allowed, charged, disagreements, proven
from fedrfq.robust.rules.bounded import limited

ONE = 2**FRACTION_BITS
# Clients of one class with two values: the last is the liar. One client may be malicious.
CLIENTS = [(1.2, 3.4), (2.2, 2.2), (3.0, 3.6), (2.0, 4.6), (8.6, 0.9)]
LIARS = 1
# Two classes by their last certified centres, and uploads of the first.
CENTRES = [(1.6, 2.6), (8.4, 3.4)]
UPLOADS = [(1.2, 4.2), (2.1, 1.2), (0.9, 2.0), (2.3, 3.6), (8.3, 3.3)]
# Pixels of a unit, and the height of the picture.
SCALE = 38
HEIGHT = 330


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("docs/images/adaptive.svg"))
    path = parser.parse_args().out
    path.write_text(picture(), encoding="utf-8")
    print(path)


def picture() -> str:
    """Return the picture."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {HEIGHT}" '
            'font-family="system-ui, sans-serif" font-size="14">',
            "  <title>The adaptive detector: whom it charges, and bounded influence</title>",
            f'  <rect width="900" height="{HEIGHT}" fill="#ffffff"/>',
            '  <path d="M450 20V310" stroke="#9db2cf"/>',
            *accused(),
            *bounded(),
            "</svg>",
            "",
        ]
    )


def accused() -> list[str]:
    """Return the left half: clients, what they are charged with, and what is allowed."""
    disagreement_KK = disagreements(_sent(CLIENTS))
    charged_K = charged(disagreement_KK, LIARS)
    limit = allowed(proven(disagreement_KK, LIARS), LIARS)
    lines = [
        _words(24, 34, "One class, five clients, m = 1", weight=600, colour="#1d3557"),
        _words(
            24,
            56,
            f"allowed: {limit / ONE:.1f}, by the second farthest of each",
        ),
    ]
    for client, place in enumerate(CLIENTS):
        away = np.argsort(disagreement_KK[client], kind="stable")[-1 - 2 * LIARS]
        lines.append(_line(_at(place, 0), _at(CLIENTS[away], 0), "#9db2cf"))
    for client, place in enumerate(CLIENTS):
        out = charged_K[client] > 1.5 * limit
        x, y = _at(place, 0)
        lines.append(_dot(x, y, "#8a1c1c" if out else "#4a6fa5"))
        text = f"{charged_K[client] / ONE:.1f}"
        if out:
            text += ": loses its weight"
            x, y = x - 110, y + 34
        lines.append(_words(x + 9, y - 9, text, colour="#8a1c1c" if out else "#222"))
    lines.append(
        _words(24, 312, "a line leads to the third farthest: of three one may lie", size=12)
    )
    return lines


def bounded() -> list[str]:
    """Return the right half: how far uploads may pull their class toward a rival."""
    start = Globals(np.ones(2, np.bool_), _places(CENTRES))
    values_KJV = np.zeros((len(UPLOADS), 2, 2), np.int64)
    values_KJV[:, 0] = _places(UPLOADS)
    counts_KJ = np.tile([1, 0], (len(UPLOADS), 1))
    uploads = Uploads(tuple(range(len(UPLOADS))), counts_KJ, values_KJV)
    near_KV = limited(start, uploads, counts_KJ).values_KJV[:, 0] / ONE
    mine = _at(CENTRES[0], 450)
    lines = [
        _words(474, 34, "What an upload may do to its class", weight=600, colour="#1d3557"),
        _words(474, 56, "half of the way to a rival; two typical steps"),
        _line(mine, _at(CENTRES[1], 450), "#c9a063", dashed=True),
    ]
    for place, near_V in zip(UPLOADS, near_KV, strict=True):
        x, y = _at(place, 450)
        far = bool(np.abs(near_V - np.array(place)).max() > 1)
        colour = "#8a1c1c" if far else "#4a6fa5"
        lines += [_line(mine, _at(tuple(near_V), 450), colour), _dot(x, y, colour, hollow=True)]
        lines.append(_dot(*_at(tuple(near_V), 450), colour))
    lines.append(_words(_at(CENTRES[1], 450)[0] - 96, 118, "sent as class 0", colour="#8a1c1c"))
    for number, place in enumerate(CENTRES):
        x, y = _at(place, 450)
        cross = f"M{x - 7:.0f} {y:.0f}h14M{x:.0f} {y - 7:.0f}v14"
        lines.append(f'  <path d="{cross}" stroke="#222" stroke-width="2"/>')
        lines.append(_words(x - 20, y + 32, f"class {number}"))
    lines.append(
        _words(
            474, 312, "hollow: sent; filled: as it counts; crosses: last certified centres", size=12
        )
    )
    return lines


def _sent(places: Sequence[tuple[float, float]]) -> Uploads:
    values_KJV = _places(places)[:, None]
    return Uploads(tuple(range(len(places))), np.ones((len(places), 1), np.int64), values_KJV)


def _places(places: Sequence[tuple[float, float]]) -> Ints:
    return np.rint(np.array(places) * ONE).astype(np.int64)


def _at(place: tuple[float, ...], left: int) -> tuple[float, float]:
    """Return where a place is drawn."""
    return left + 34 + SCALE * place[0], HEIGHT - 46 - SCALE * place[1]


def _dot(x: float, y: float, colour: str, hollow: bool = False) -> str:
    fill = "none" if hollow else colour
    return (
        f'  <circle cx="{x:.0f}" cy="{y:.0f}" r="6" fill="{fill}" stroke="{colour}" '
        'stroke-width="1.5"/>'
    )


def _line(
    one: tuple[float, float], other: tuple[float, float], colour: str, dashed: bool = False
) -> str:
    dashes = ' stroke-dasharray="6 4"' if dashed else ""
    path = f"M{one[0]:.0f} {one[1]:.0f}L{other[0]:.0f} {other[1]:.0f}"
    return f'  <path d="{path}" stroke="{colour}" stroke-width="1.5"{dashes}/>'


def _words(
    x: float, y: float, text: str, *, size: int = 14, weight: int = 400, colour: str = "#222"
) -> str:
    return (
        f'  <text x="{x:.0f}" y="{y:.0f}" font-size="{size}" font-weight="{weight}" '
        f'fill="{colour}">{text}</text>'
    )


if __name__ == "__main__":
    main()
