"""How likely a committee is to hold: the paper's security probability, exact for any number of servers.

Each of N servers is faulty with probability p, independently of the others. The committee holds while at most
f = ⌊(N − 1) / 3⌋ are: Σ_{i ≤ f} C(N, i) pⁱ (1 − p)^{N − i}. It does not rise with every server added, as the paper's text
has it: f moves in steps of three, and a server added in between is only one more that may fail. With p = 0.3 even seven
hold less often than four.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from math import comb
from pathlib import Path

from fedrfq.errors import UserError

MOST_SERVERS = 1_000
_FINEST = 10**9  # parts of which probabilities are whole numbers


def tolerated(servers: int) -> int:
    """f: how many servers may be faulty."""
    return (servers - 1) // 3


def security(servers: int, p: Fraction) -> Fraction:
    """The probability that at most f of the servers are faulty."""
    if not 1 <= servers <= MOST_SERVERS:
        raise UserError(f"servers must be 1 to {MOST_SERVERS:,}, not {servers}")
    if not 0 <= p <= 1:
        raise UserError(f"p is a probability, from 0 to 1, not {float(p)}")
    faulty = p.numerator
    sound = p.denominator - p.numerator
    whole = p.denominator
    good = sum(
        comb(servers, i) * faulty**i * sound ** (servers - i) for i in range(tolerated(servers) + 1)
    )
    return Fraction(good, whole**servers)


def numbers(text: str) -> range:
    """ "4..40", or one number."""
    first, dots, last = text.partition("..")
    if (
        not first.isdecimal()
        or not (last if dots else first).isdecimal()
        or len(text) > 2 * len(str(MOST_SERVERS)) + 2
    ):
        raise UserError(
            f"--servers is a number or a range such as 4..40, up to {MOST_SERVERS:,}, not '{text}'"
        )
    found = range(int(first), int(last if dots else first) + 1)
    if not found or not 1 <= found[0] <= found[-1] <= MOST_SERVERS:
        raise UserError(
            f"--servers is a number or a range such as 4..40, up to {MOST_SERVERS:,}, not '{text}'"
        )
    return found


def probabilities(text: str) -> list[Fraction]:
    """Decimal numbers by commas, taken exactly."""
    try:
        found = [Fraction(Decimal(part)) for part in text.split(",")]
    except (InvalidOperation, OverflowError, ValueError):
        raise UserError(f"--p is probabilities by commas, such as 0.1,0.2, not '{text}'") from None
    if any(not 0 <= p <= 1 or p.denominator > _FINEST for p in found):
        raise UserError(f"--p is probabilities from 0 to 1 with nine digits at most, not '{text}'")
    return found


def draw(path: Path, servers: Sequence[int], ps: Sequence[Fraction]) -> None:
    """The probability against every number of servers, a line for each p."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for p in ps:
        axes.plot(
            servers, [float(security(n, p)) for n in servers], marker=".", label=f"p = {float(p):g}"
        )
    axes.set(
        xlabel="servers N",
        ylabel="probability that at most ⌊(N − 1) / 3⌋ are faulty",
        title="security of a committee",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot draw to {path}: {error}") from error
    finally:
        plt.close(figure)
