"""What the paper prints: `experiments/paper.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedrfq.errors import UserError, nearest
from fedrfq.files import toml
from fedrfq.studies.recipe import folder

FILE = "paper.toml"


@dataclass(frozen=True)
class Printed:
    """A method's row of a table: accuracy and what stands after ±, by setting; rounds, and parameters of a round."""

    rounds: int
    parameters: int
    accuracy: Mapping[str, tuple[float, float]]

    @staticmethod
    def of(row: Mapping[str, Any]) -> Printed:
        cells = {
            key: (float(value[0]), float(value[1]))
            for key, value in row.items()
            if isinstance(value, list)
        }
        return Printed(int(row["rounds"]), int(row["parameters"]), cells)


def printed(table: str) -> dict[str, Printed]:
    """A table of the paper, by method."""
    whole = toml.read(folder() / FILE)
    if table not in whole:
        raise UserError(
            f"paper = one of {', '.join(whole)}, not '{table}'{nearest(table, list(whole))}"
        )
    try:
        return {method: Printed.of(row) for method, row in whole[table].items()}
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UserError(
            f"{folder() / FILE}: {table} is not as it should be ({error!r}): restore it"
        ) from error
