"""The kinds of studies, and the plan that each makes of a study."""

from __future__ import annotations

from collections.abc import Callable

from fedrfq.errors import UserError, did_you_mean
from fedrfq.paper import bound, failures, lipschitz, security_study
from fedrfq.paper.tables import TablePlan
from fedrfq.studies.compare import ComparePlan
from fedrfq.studies.figure import FigurePlan, frontier
from fedrfq.studies.plan import Plan
from fedrfq.studies.robustness import RobustnessPlan
from fedrfq.studies.study import Study

# A new kind is a file with such a function, and a line here.
KINDS: dict[str, Callable[[Study], Plan]] = {
    "compare": ComparePlan.of,
    "robustness": RobustnessPlan.of,
    "table": TablePlan.of,
    "figure": FigurePlan.of,
    "frontier": frontier,
    "security": security_study.SecurityPlan.of,
    "lipschitz": lipschitz.LipschitzPlan.of,
    "bound": bound.BoundPlan.of,
    "failures": failures.FailuresPlan.of,
}


def plan(study: Study) -> Plan:
    """Return the plan for a study, by its kind."""
    if study.kind not in KINDS:
        near = did_you_mean(study.kind, list(KINDS))
        raise UserError(
            f"{study.name}: kind must be one of {', '.join(KINDS)}, not '{study.kind}'{near}"
        )
    return KINDS[study.kind](study)
