"""The figures that the paper prints, as `experiments/paper.toml` has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedrfq.errors import UserError, check_one_of
from fedrfq.files import toml
from fedrfq.studies.study import folder

FILE = "paper.toml"


@dataclass(frozen=True)
class Printed:
    """A method's row in a table of the paper.

    `accuracy` has the accuracy and the figure after ± for each setting, `parameters` the number of
    values that all clients upload in a round.
    """

    rounds: int
    parameters: int
    accuracy: Mapping[str, tuple[float, float]]

    @staticmethod
    def of(row: Mapping[str, Any]) -> Printed:
        """Read a row of the file; the settings are the keys whose value is a list."""
        accuracy = {
            setting: (float(value[0]), float(value[1]))
            for setting, value in row.items()
            if isinstance(value, list)
        }
        return Printed(int(row["rounds"]), int(row["parameters"]), accuracy)


def printed(table: str) -> dict[str, Printed]:
    """Return the rows of one of the paper's tables, by method."""
    path = folder() / FILE
    tables = toml.read(path)
    check_one_of("paper", table, tables)
    try:
        return {method: Printed.of(row) for method, row in tables[table].items()}
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UserError(
            f"{path}: the section {table} is damaged ({error!r}); restore the file"
        ) from error
