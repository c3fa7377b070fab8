"""Kind `security`: the security probability for each number of servers, and the paper's claims.

servers = "4..40"          the numbers of servers
p = "0.1,0.2,0.3"          the probabilities that a server is faulty
enough = "0.99"            a committee is called secure if its probability is above this …
beyond = 20                … which the paper claims for more servers than this, below the first p
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from fedrfq.errors import UserError
from fedrfq.paper.security import draw, numbers, probabilities, security, tolerated
from fedrfq.studies.plan import Plan, Progress, StudyResult
from fedrfq.studies.sheets import Sheet
from fedrfq.studies.study import Study

if TYPE_CHECKING:
    import torch

    from fedrfq.studies.grid import EndedRun

_MAX_NAMED = 8  # numbers of servers that are listed one by one
Securities = Mapping[tuple[int, Fraction], Fraction]  # by number of servers and p


@dataclass(frozen=True)
class SecurityClaim:
    """A sentence of the paper, whether it holds, and the figures that decide it."""

    says: str
    holds: bool
    found: str


@dataclass(frozen=True)
class SecurityPlan(Plan):
    """The numbers of servers and the probabilities to compute."""

    servers: Sequence[int]
    ps: Sequence[Fraction]
    enough: Fraction
    beyond: int

    @staticmethod
    def of(study: Study) -> SecurityPlan:
        """Read and check a study of this kind."""
        table = study.table
        study.check_keys(["servers", "p", "enough", "beyond"])
        beyond = table.get("beyond", 20)
        if type(beyond) is not int:
            raise UserError(f"beyond must be a number of servers, such as 20, not {beyond!r}")
        return SecurityPlan(
            study,
            servers=numbers(str(table.get("servers", "4..40"))),
            ps=sorted(probabilities(str(table.get("p", "0.1,0.2,0.3")))),
            enough=probabilities(str(table.get("enough", "0.99")))[0],
            beyond=beyond,
        )

    def show(
        self, ended: Mapping[str, EndedRun], folder: Path, device: torch.device, tell: Progress
    ) -> StudyResult:
        """Compute the probabilities, judge the claims and draw security.png."""
        tell(0, "security probabilities")
        computed = {(n, p): security(n, p) for n in self.servers for p in self.ps}
        claims = [self._falls_with_p(computed)]
        claims += [self._rises_with_n(computed, p) for p in self.ps]
        claims += [self._rises_by_threes(computed, p) for p in self.ps]
        claims += [self._secure_below(computed)]
        claims += [self._secure_from(computed, p) for p in self.ps]
        rows = [
            {"servers": n, "tolerated": tolerated(n), "p": float(p), "security": float(probability)}
            for (n, p), probability in computed.items()
        ]
        picture = folder / "security.png"
        draw(picture, self.servers, self.ps)
        whole = {
            "title": self.study.title,
            "claims": [asdict(claim) for claim in claims],
            "rows": rows,
        }
        return StudyResult([self._sheet(computed), _claims_sheet(claims)], whole, rows, [picture])

    def _sheet(self, computed: Securities) -> Sheet:
        rows = [
            (str(n), str(tolerated(n)), *(f"{float(computed[n, p]):.6f}" for p in self.ps))
            for n in self.servers
        ]
        header = ("servers", "may be faulty", *(f"p = {float(p):g}" for p in self.ps))
        note = "Σ over i ≤ ⌊(N − 1) / 3⌋ of C(N, i) pⁱ (1 − p)ᴺ⁻ⁱ, computed exactly."
        return Sheet(self.study.title, header, tuple(rows), note)

    def _falls_with_p(self, computed: Securities) -> SecurityClaim:
        exceptions = [
            n
            for n in self.servers
            if any(computed[n, larger] >= computed[n, p] for p, larger in pairwise(self.ps))
        ]
        says = "security falls as p rises"
        if exceptions:
            return SecurityClaim(says, False, f"not with {_listed(exceptions)}")
        return SecurityClaim(says, True, "with every N")

    def _rises_with_n(self, computed: Securities, p: Fraction) -> SecurityClaim:
        falls = [b for a, b in pairwise(self.servers) if computed[b, p] <= computed[a, p]]
        says = f"more servers are more secure, at p = {float(p):g}"
        if not falls:
            return SecurityClaim(says, True, "with every N")
        # The servers are a range, so n − 1 is the number before n.
        worst = max(falls, key=lambda n: computed[n - 1, p] - computed[n, p])
        drop = float(computed[worst - 1, p] - computed[worst, p])
        steps = f"security falls in {len(falls)} of {len(self.servers) - 1} steps"
        return SecurityClaim(
            says, False, f"{steps} ({_listed(falls)}), at most by {drop:.4f}, with {worst}"
        )

    def _rises_by_threes(self, computed: Securities, p: Fraction) -> SecurityClaim:
        """Judge the same only where one more fault is tolerated: N = 3f + 1."""
        threes = [n for n in self.servers if n % 3 == 1]
        falls = [b for a, b in pairwise(threes) if computed[b, p] <= computed[a, p]]
        says = f"… counting only N = 3f + 1, at p = {float(p):g}"
        if falls:
            return SecurityClaim(says, False, f"security falls with {_listed(falls)}")
        return SecurityClaim(says, True, "with every such N")

    def _secure_below(self, computed: Securities) -> SecurityClaim:
        # Security falls as p rises, so what holds at the first p holds at every p below it.
        p = self.ps[0]
        larger = [n for n in self.servers if n > self.beyond]
        exceptions = [n for n in larger if computed[n, p] <= self.enough]
        says = (
            f"p < {float(p):g} and more than {self.beyond} servers: security is above "
            f"{float(self.enough):g}"
        )
        if exceptions:
            return SecurityClaim(says, False, f"not with {_listed(exceptions)}")
        if not larger:
            return SecurityClaim(says, False, "no such number of servers was computed")
        lowest = float(min(computed[n, p] for n in larger))
        return SecurityClaim(says, True, f"at p = {float(p):g} itself at least {lowest:.4f}")

    def _secure_from(self, computed: Securities, p: Fraction) -> SecurityClaim:
        insecure = [n for n in self.servers if computed[n, p] <= self.enough]
        says = f"enough servers make it secure (above {float(self.enough):g}) at p = {float(p):g}"
        if not insecure:
            return SecurityClaim(says, True, f"from {self.servers[0]} on")
        last = insecure[-1]
        if last == self.servers[-1]:
            best = max(self.servers, key=lambda n: computed[n, p])
            highest = float(computed[best, p])
            return SecurityClaim(
                says, False, f"not up to {last}: at most {highest:.4f}, with {best}"
            )
        return SecurityClaim(says, True, f"from {last + 1} on")


def _claims_sheet(claims: Sequence[SecurityClaim]) -> Sheet:
    verdicts = {True: "holds", False: "fails"}
    rows = [(claim.says, verdicts[claim.holds], claim.found) for claim in claims]
    header = ("claim", "verdict", "computed")
    return Sheet("The paper's claims", header, tuple(rows), labels=3)


def _listed(servers: Sequence[int]) -> str:
    text = f"N = {', '.join(map(str, servers[:_MAX_NAMED]))}"
    if len(servers) > _MAX_NAMED:
        text += ", …"
    return text
