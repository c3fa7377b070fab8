"""The kinds of recipes, and the plan that each makes of a recipe."""

from __future__ import annotations

from collections.abc import Callable

from fedrfq.errors import UserError, did_you_mean
from fedrfq.paper import bound, failures, lipschitz, security_recipe
from fedrfq.paper.tables import TablePlan
from fedrfq.studies.figure import FigurePlan
from fedrfq.studies.frontier import frontier
from fedrfq.studies.recipe import Plan, Recipe

# A new kind is a file with such a function, and a line here.
KINDS: dict[str, Callable[[Recipe], Plan]] = {
    "table": TablePlan.of,
    "figure": FigurePlan.of,
    "frontier": frontier,
    "security": security_recipe.SecurityPlan.of,
    "lipschitz": lipschitz.LipschitzPlan.of,
    "bound": bound.BoundPlan.of,
    "failures": failures.FailuresPlan.of,
}


def plan(recipe: Recipe) -> Plan:
    """Return the plan for a recipe, by its kind."""
    if recipe.kind not in KINDS:
        near = did_you_mean(recipe.kind, list(KINDS))
        raise UserError(
            f"{recipe.name}: kind must be one of {', '.join(KINDS)}, not '{recipe.kind}'{near}"
        )
    return KINDS[recipe.kind](recipe)
