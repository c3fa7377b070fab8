"""Vega, which draws the charts: its program for the page, and pictures. It comes with the package vl-convert-python."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from fedrfq.errors import UserError
from fedrfq.report.figure import Figure
from fedrfq.report.theme import DAY

_VERSION = "6.1"  # of Vega-Lite; 6.4 forgets the names in the tooltip of the nearest point
_SCALE = 2.0  # pixels of a picture for each of the page


def check() -> None:
    """That it is installed."""
    if find_spec("vl_convert") is None:
        raise UserError("reports need the package vl-convert-python: pip install 'fedrfq[report]'")


@contextmanager
def programming() -> Iterator[Callable[[], str]]:
    """Gives what waits for `program`, which a process of its own puts together meanwhile: it takes a second."""
    script = "import sys; from fedrfq.report.vega import program; sys.stdout.write(program())"
    command = [sys.executable, "-X", "utf8", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as process:
        try:
            yield lambda: _finished(process)
        finally:
            process.kill()


def _finished(process: subprocess.Popen[str]) -> str:
    code = process.communicate()[0]
    if process.returncode:
        raise UserError("Vega's program cannot be had from vl-convert-python: install it again")
    return code


def program() -> str:
    """JavaScript that defines vegaEmbed; no part of it can end the script element it stands in."""
    import vl_convert

    code: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=_VERSION)
    return code.replace("</script", r"<\/script").replace("<!--", r"<\!--")


def png(figure: Figure) -> bytes:
    import vl_convert

    try:
        return vl_convert.vegalite_to_png(figure.picture(DAY), vl_version=_VERSION, scale=_SCALE)
    except ValueError as error:
        raise UserError(
            f"the figure '{figure.name}' cannot be drawn: {' '.join(str(error).split())[:200]}"
        ) from error
