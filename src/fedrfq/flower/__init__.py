"""The federation as a Flower app: nodes host clients, the server app is a courier to the committee.

Nothing outside this package imports Flower.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from fedrfq.errors import UserError

# The versions whose interface this package knows: from MIN_VERSION on, below END_VERSION.
MIN_VERSION = (1, 41)
END_VERSION = (1, 43)


def require() -> None:
    """Raise a UserError unless Flower is installed in a version that this package knows."""
    remedy = "pip install 'fedrfq[flower]'"
    try:
        installed = version("flwr")
    except PackageNotFoundError:
        raise UserError(f"Flower is not installed: {remedy}") from None
    numbers = re.match(r"(\d+)\.(\d+)", installed)
    if numbers is None or not MIN_VERSION <= tuple(map(int, numbers.groups())) < END_VERSION:
        raise UserError(
            f"Flower {installed} is installed, but fedrfq needs at least {_dotted(MIN_VERSION)} "
            f"and less than {_dotted(END_VERSION)}: {remedy}"
        )


def _dotted(numbers: tuple[int, int]) -> str:
    return ".".join(map(str, numbers))


require()
