"""The same federation on Flower's engines: nodes host clients, and the server app is a courier between them and the
committee. Nothing outside this package imports Flower."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from fedrfq.errors import UserError

LEAST = (1, 41)
BELOW = (1, 43)


def require() -> None:
    """That Flower is installed, in a version whose interface this package knows."""
    wanted = "pip install 'fedrfq[flower]'"
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise UserError(f"Flower is not installed: {wanted}") from None
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers is None or not LEAST <= tuple(map(int, numbers.groups())) < BELOW:
        known = f"from {_dotted(LEAST)} on, below {_dotted(BELOW)}"
        raise UserError(
            f"Flower {found} is installed, and versions {known} are known here: {wanted}"
        )


def _dotted(numbers: tuple[int, int]) -> str:
    return ".".join(map(str, numbers))


require()
