"""The paper's security probability of a committee, exact for any number of servers.

Each of N servers is faulty with probability p, independently of the others. The committee is secure
while at most f = ⌊(N − 1) / 3⌋ of them are: Σ_{i ≤ f} C(N, i) pⁱ (1 − p)^{N − i}. The probability
does not rise with every server that is added, as the paper's text says: f grows only with every
third server, and the others are just more servers that can fail. With p = 0.3, seven servers are
less secure than four.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from math import comb
from pathlib import Path

from fedrfq.errors import UserError
from fedrfq.files.pictures import subplots

MAX_SERVERS = 1_000
_MAX_DENOMINATOR = 10**9  # nine decimal digits: exact powers of p stay small enough


def tolerated(servers: int) -> int:
    """Return f, the number of servers that may be faulty."""
    return (servers - 1) // 3


def security(servers: int, p: Fraction) -> Fraction:
    """Return the probability that at most f of the servers are faulty."""
    if not 1 <= servers <= MAX_SERVERS:
        raise UserError(f"servers must be 1 to {MAX_SERVERS:,}, not {servers}")
    if not 0 <= p <= 1:
        raise UserError(f"p must be a probability from 0 to 1, not {float(p)}")
    # In integers over a common denominator: adding fractions would reduce each of them.
    faulty = p.numerator
    sound = p.denominator - p.numerator
    secure = sum(
        comb(servers, i) * faulty**i * sound ** (servers - i) for i in range(tolerated(servers) + 1)
    )
    return Fraction(secure, p.denominator**servers)


def numbers(text: str) -> range:
    """Parse numbers of servers: one number, or a range such as "4..40"."""
    first, dots, last = text.partition("..")
    if not dots:
        last = first
    # The length is checked before int(), which is slow for very long numbers.
    is_short = len(text) <= 2 * len(str(MAX_SERVERS)) + len("..")
    if is_short and first.isdecimal() and last.isdecimal():
        servers = range(int(first), int(last) + 1)
        if servers and 1 <= servers[0] <= servers[-1] <= MAX_SERVERS:
            return servers
    raise UserError(
        f"--servers must be a number or a range such as 4..40, up to {MAX_SERVERS:,}, not '{text}'"
    )


def probabilities(text: str) -> list[Fraction]:
    """Parse decimal numbers separated by commas, exactly."""
    try:
        ps = [Fraction(Decimal(part)) for part in text.split(",")]
    except (InvalidOperation, OverflowError, ValueError):
        raise UserError(
            f"--p must be probabilities separated by commas, such as 0.1,0.2, not '{text}'"
        ) from None
    if any(not 0 <= p <= 1 or p.denominator > _MAX_DENOMINATOR for p in ps):
        raise UserError(
            f"--p must be probabilities from 0 to 1 with at most nine digits, not '{text}'"
        )
    return ps


def draw(path: Path, servers: Sequence[int], ps: Sequence[Fraction]) -> None:
    """Draw the probability against the number of servers, with a line for each p."""
    figure, [[axes]] = subplots((7, 4.2))
    for p in ps:
        probabilities_N = [float(security(n, p)) for n in servers]
        axes.plot(servers, probabilities_N, marker=".", label=f"p = {float(p):g}")
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
