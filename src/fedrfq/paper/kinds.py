"""The kinds of studies, and the plan that each makes of a study."""

from __future__ import annotations

from collections.abc import Callable

from fedrfq.errors import check_one_of
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
    check_one_of(f"{study.name}: kind", study.kind, KINDS)
    return KINDS[study.kind](study)
