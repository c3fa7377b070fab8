"""Kind `security`: how likely a committee is to hold, against every number of servers, and what the paper says of it.

servers = "4..40"          which numbers
p = "0.1,0.2,0.3"          the probabilities that a server is faulty
enough = "0.99"            what is called secure …
beyond = 20                … with more servers than this, and a p below the first
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, known
from fedrfq.paper.security import draw, numbers, probabilities, security, tolerated
from fedrfq.studies.recipe import Recipe, Shown, Tell
from fedrfq.studies.sheets import NOTHING, Sheet

if TYPE_CHECKING:
    import torch

    from fedrfq.studies.grid import EndedRun

_NAMED = 8  # numbers of servers that are named one by one


@dataclass(frozen=True)
class SecurityClaim:
    """A sentence of the paper, whether it holds, and what was computed."""

    says: str
    holds: bool
    found: str


@dataclass(frozen=True)
class SecurityPlan:
    recipe: Recipe
    servers: Sequence[int]
    ps: Sequence[Fraction]
    enough: Fraction
    beyond: int
    experiments: Sequence[Experiment] = ()
    keep: bool = False

    @staticmethod
    def of(recipe: Recipe) -> SecurityPlan:
        table = recipe.table
        known(table, ["servers", "p", "enough", "beyond"], "")
        beyond = table.get("beyond", 20)
        if type(beyond) is not int:
            raise UserError(f"beyond is a number of servers, such as 20, not {beyond!r}")
        ps = sorted(probabilities(str(table.get("p", "0.1,0.2,0.3"))))
        servers = numbers(str(table.get("servers", "4..40")))
        return SecurityPlan(
            recipe, servers, ps, probabilities(str(table.get("enough", "0.99")))[0], beyond
        )

    def show(
        self, ended: Mapping[str, EndedRun], folder: Path, device: torch.device, tell: Tell
    ) -> Shown:
        tell(0, "security probabilities")
        found = {(n, p): security(n, p) for n in self.servers for p in self.ps}
        claims = [self._falls_with_p(found), *(self._rises_with_n(found, p) for p in self.ps)]
        claims += [self._by_threes(found, p) for p in self.ps]
        claims += [self._secure_below(found), *(self._secure_from(found, p) for p in self.ps)]
        rows = [
            {"servers": n, "tolerated": tolerated(n), "p": float(p), "security": float(found[n, p])}
            for n, p in found
        ]
        picture = folder / "security.png"
        draw(picture, self.servers, self.ps)
        whole = {
            "title": self.recipe.title,
            "claims": [asdict(claim) for claim in claims],
            "rows": rows,
        }
        return Shown([self._sheet(found), _claims(claims)], whole, rows, [picture])

    def _sheet(self, found: Mapping[tuple[int, Fraction], Fraction]) -> Sheet:
        rows = [
            (str(n), str(tolerated(n)), *(f"{float(found[n, p]):.6f}" for p in self.ps))
            for n in self.servers
        ]
        header = ("servers", "may be faulty", *(f"p = {float(p):g}" for p in self.ps))
        return Sheet(
            self.recipe.title,
            header,
            tuple(rows),
            "Σ over i ≤ ⌊(N − 1) / 3⌋ of C(N, i) pⁱ (1 − p)ᴺ⁻ⁱ, exact",
            1,
        )

    def _falls_with_p(self, found: Mapping[tuple[int, Fraction], Fraction]) -> SecurityClaim:
        against = [
            n for n in self.servers if any(found[n, q] >= found[n, p] for p, q in pairwise(self.ps))
        ]
        return SecurityClaim(
            "it falls as p rises",
            not against,
            f"not with {_named(against)}" if against else "with every N",
        )

    def _rises_with_n(
        self, found: Mapping[tuple[int, Fraction], Fraction], p: Fraction
    ) -> SecurityClaim:
        falls = [b for a, b in pairwise(self.servers) if found[b, p] <= found[a, p]]
        says = f"more servers, more secure, at p = {float(p):g}"
        if not falls:
            return SecurityClaim(says, True, "with every N")
        worst = max(falls, key=lambda n: found[n - 1, p] - found[n, p])
        lost = float(found[worst - 1, p] - found[worst, p])
        steps = f"{len(falls)} of {len(self.servers) - 1} steps fall ({_named(falls)})"
        return SecurityClaim(says, False, f"{steps}; most with {worst}, by {lost:.4f}")

    def _by_threes(
        self, found: Mapping[tuple[int, Fraction], Fraction], p: Fraction
    ) -> SecurityClaim:
        """Only where one more fault is borne: N = 3f + 1."""
        threes = [n for n in self.servers if n % 3 == 1]
        falls = [b for a, b in pairwise(threes) if found[b, p] <= found[a, p]]
        says = f"… counted at N = 3f + 1 only, at p = {float(p):g}"
        return SecurityClaim(
            says, not falls, f"falls with {_named(falls)}" if falls else "with every such N"
        )

    def _secure_below(self, found: Mapping[tuple[int, Fraction], Fraction]) -> SecurityClaim:
        """With the first p in place of all below it: the probability falls as p rises."""
        p = self.ps[0]
        more = [n for n in self.servers if n > self.beyond]
        against = [n for n in more if found[n, p] <= self.enough]
        says = f"p < {float(p):g} and more than {self.beyond} servers: above {float(self.enough):g}"
        least = min((found[n, p] for n in more), default=Fraction(0))
        if against:
            said = f"not with {_named(against)}"
        else:
            said = f"at p = {float(p):g} itself {float(least):.4f} at least"
        return SecurityClaim(says, bool(more) and not against, said)

    def _secure_from(
        self, found: Mapping[tuple[int, Fraction], Fraction], p: Fraction
    ) -> SecurityClaim:
        short = [n for n in self.servers if found[n, p] <= self.enough]
        says = f"enough servers make it secure (above {float(self.enough):g}) at p = {float(p):g}"
        last = (short or [0])[-1]
        best = max(self.servers, key=lambda n: found[n, p])
        if last == self.servers[-1]:
            return SecurityClaim(
                says, False, f"not up to {last}: {float(found[best, p]):.4f} at most, with {best}"
            )
        return SecurityClaim(says, True, f"from {last + 1 if short else self.servers[0]} on")


def _claims(claims: Sequence[SecurityClaim]) -> Sheet:
    rows = [
        (claim.says, "holds" if claim.holds else "fails", claim.found or NOTHING)
        for claim in claims
    ]
    return Sheet("What the paper says of it", ("claim", "", "computed"), tuple(rows), labels=3)


def _named(servers: Sequence[int]) -> str:
    if len(servers) > _NAMED:
        rest = ", …"
    else:
        rest = ""
    return f"N = {', '.join(map(str, servers[:_NAMED]))}{rest}"
