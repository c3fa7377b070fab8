"""The search behind `fedrfq-lean`: which settings are most accurate within a quarter of the bytes.

    python bench/lean_search.py --device cuda --out results/lean-search.json

It varies the geometry of the map, pooling, distance, λ, separation, temperature, warm-up and bits
per value, on MNIST with 20 clients, 3 ± 2 classes and 100 shots. A fifth of every client's samples
for training is held back (`search.py`). Finalists are the best within a quarter of FedProto's
bytes, with and without warm-up, and with more bits where there is room.
"""

from __future__ import annotations

import itertools

from rich.table import Table

from search import COLUMNS, Row, Rows, Search, Settings, Stage, carry_out, mean, short, shown

TASKS: dict[str, Settings] = {
    name: (f"data.name={name}", "validation=0.2") for name in ("mnist", "mnist5k")
}
# Rows, kernel and stride: 24, 12, 24 and 10 values of 50.
MAPS = ((2, 2, 1), (2, 2, 2), (5, 3, 1), (5, 2, 2))
POOLS = ("softpool", "avg")
# λ for the distance, and for the squared distance.
WEIGHTS = {1: (0.1, 0.3, 1.0), 2: (0.3, 1.0, 3.0)}
# Weight and temperature of the separation.
SEPARATIONS = ((0.0, 1.0), *itertools.product((0.1, 0.3, 1.0), (0.2, 1.0)))
FEDPROTO: Settings = ("method.name=fedproto",)
REFERENCES: list[Settings] = [FEDPROTO, ("method.name=fedrfq",)]
CHANGES: tuple[Settings, ...] = ((), ("method.warmup=10",), ("method.bits=16",))


def candidates() -> list[Settings]:
    """Return all settings of the first look."""
    settings: list[Settings] = []
    for (rows, kernel, stride), pool, power in itertools.product(MAPS, POOLS, WEIGHTS):
        shape = (
            f"pool.rows={rows}",
            f"pool.kernel={kernel}",
            f"pool.stride={stride}",
            f"pool.name={pool}",
        )
        for lam, (separation, temperature) in itertools.product(WEIGHTS[power], SEPARATIONS):
            settings.append(
                (
                    "method.name=fedrfq-lean",
                    "method.bits=8",
                    *shape,
                    f"method.power={power}",
                    f"method.lam={lam}",
                    f"method.separation={separation}",
                    f"method.temperature={temperature}",
                )
            )
    return settings


def merit(row: Row) -> float:
    """Return what candidates are ranked by: both mean accuracies together."""
    return sum(mean(row, key) for key in COLUMNS)


def ranked(rows: Rows) -> list[Settings]:
    """Return the settings, best first."""
    return sorted(rows, key=lambda sets: -merit(rows[sets]))


def finalists(stage: Stage, count: int) -> list[Settings]:
    """Return the best within the bytes, as they are and changed, and the references."""
    (rows,) = stage.values()
    most = mean(rows[FEDPROTO], "bytes_up") / 4
    within = [
        sets
        for sets in ranked(rows)
        if sets not in REFERENCES and mean(rows[sets], "bytes_up") <= most
    ]
    changed = itertools.product(within[:count], CHANGES)
    return [*((*sets, *change) for sets, change in changed), *REFERENCES]


def table(stage: Stage, count: int) -> Table:
    """Return a table of the best settings."""
    (rows,) = stage.values()
    found = Table("setting", "own head / nearest prototype", "bytes")
    for sets in ranked(rows)[: 5 * count]:
        found.add_row(short(sets), shown(rows, sets), f"{mean(rows[sets], 'bytes_up'):,.0f}")
    return found


if __name__ == "__main__":
    carry_out(Search(TASKS, candidates(), REFERENCES, finalists, table, (40, 100)), __doc__)
