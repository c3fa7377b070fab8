"""Vega, which draws the charts: its JavaScript for the page, and PNG pictures.

It comes with the package vl-convert-python.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from fedrfq.errors import UserError
from fedrfq.report.figure import Figure
from fedrfq.report.theme import DAY

# Vega-Lite 6.4 drops the names in the tooltip of the nearest point.
_VERSION = "6.1"
# Pixels of a picture per pixel of the page.
_SCALE = 2.0


def check() -> None:
    """Raise a UserError if Vega is not installed."""
    if find_spec("vl_convert") is None:
        raise UserError("reports need the package vl-convert-python: pip install 'fedrfq[report]'")


@contextmanager
def programming() -> Iterator[Callable[[], str]]:
    """Start to build Vega's JavaScript in a process of its own; yield a function that waits for it.

    Building takes a second, in which the caller can draw the pictures.
    """
    script = "import sys; from fedrfq.report.vega import program; sys.stdout.write(program())"
    # -P: nothing is imported from the current folder, which may be anybody's runs.
    command = [sys.executable, "-P", "-X", "utf8", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as process:
        try:
            yield lambda: _finished(process)
        finally:
            process.kill()


def _finished(process: subprocess.Popen[str]) -> str:
    code = process.communicate()[0]
    if process.returncode:
        raise UserError(
            "vl-convert-python failed to build Vega's JavaScript: install it again with "
            "pip install --force-reinstall vl-convert-python"
        )
    return code


def program() -> str:
    """Return JavaScript that defines vegaEmbed, and that can stand in a script element."""
    import vl_convert

    code: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=_VERSION)
    # Nothing in the code may end the element or open a comment in it.
    return code.replace("</script", r"<\/script").replace("<!--", r"<\!--")


def png(figure: Figure) -> bytes:
    """Draw the figure as a picture, in the colours of a light page."""
    import vl_convert

    try:
        return vl_convert.vegalite_to_png(figure.picture(DAY), vl_version=_VERSION, scale=_SCALE)
    except ValueError as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"the figure '{figure.name}' cannot be drawn: {reason}") from error
