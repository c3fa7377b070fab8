"""The kinds of recipes."""

from __future__ import annotations

from collections.abc import Callable

from fedrfq.errors import UserError, nearest
from fedrfq.paper import bound, failures, lipschitz, security_recipe
from fedrfq.paper.tables import PaperTable
from fedrfq.studies.figure import Figure
from fedrfq.studies.recipe import Plan, Recipe

KINDS: dict[str, Callable[[Recipe], Plan]] = {
    "table": PaperTable.of,
    "figure": Figure.of,
    "security": security_recipe.Plan.of,
    "lipschitz": lipschitz.Plan.of,
    "bound": bound.Plan.of,
    "failures": failures.Plan.of,
}


def plan(recipe: Recipe) -> Plan:
    if recipe.kind not in KINDS:
        near = nearest(recipe.kind, list(KINDS))
        raise UserError(
            f"{recipe.name}: kind is one of {', '.join(KINDS)}, not '{recipe.kind}'{near}"
        )
    return KINDS[recipe.kind](recipe)
