"""The search behind `fedrfq-coded`: which settings are no worse than every control and peer.

    python bench/variant_search.py --device cuda --out results/variant-search.json

It varies length, learned share, repulsion, λ, separation, calibration and bits, on the tasks below.
A quarter of every client's training samples is held back (`search.py`). Every method's λ is
searched, not only ours. Finalists are the best settings of each method.

A candidate is judged by its worst column: the smallest difference, over tasks and ways to predict,
to the best setting of any other method.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rich.table import Table

from search import COLUMNS, Rows, Search, Settings, Stage, carry_out, mean, short, shown

TASKS: dict[str, Settings] = {
    "mnist": ("data.name=mnist",),
    "mnist, 5 ± 2": ("data.name=mnist", "partition.ways=5"),
    "mnist, 8 shots": ("data.name=mnist", "partition.shots=8"),
    "femnist, 20 ± 5, 24 shots": (
        "data.name=femnist",
        "partition.ways=20",
        "partition.spread=5",
        "partition.shots=24",
    ),
    # The data that come with the program, for a try without any download.
    "mnist5k": ("data.name=mnist5k",),
}
HELD_BACK = "validation=0.25"
OURS = "fedrfq-coded"
GRIDS: dict[str, dict[str, Sequence[object]]] = {
    OURS: {
        "bits": (8,),
        "norm": (4.0, 8.0),
        "lam": (1.0, 4.0),
        "learned": (0.3, 0.7),
        "separation": (0.0, 0.1),
        "calibration": (0.0, 1.0),
        "temperature": (0.2,),
    },
    "local": {},
    "self": {"lam": (1.0, 4.0)},
    "codes": {"norm": (4.0, 8.0), "lam": (1.0, 4.0)},
    "fedproto": {"lam": (1.0, 4.0)},
    "protonorm": {"norm": (4.0, 8.0), "lam": (1.0, 4.0), "steps": (100,)},
    "fedtgp": {"lam": (1.0,), "server_epochs": (30,)},
    "fedrfq-lean": {"lam": (1.0,)},
}
# What the finalists of our own are tried with besides.
CHANGES: tuple[Settings, ...] = (
    (),
    ("method.bits=4",),
    ("method.steps=100",),
    ("method.calibration=0.3",),
)


def candidates(method: str) -> list[Settings]:
    """Return all settings of a method's grid."""
    grid = GRIDS[method]
    return [
        (
            f"method.name={method}",
            *(f"method.{key}={value}" for key, value in zip(grid, values, strict=True)),
        )
        for values in itertools.product(*grid.values())
    ]


def name_of(sets: Settings) -> str:
    """Return the method of some settings."""
    return sets[0].partition("=")[2]


def merits(tasks: Stage, method: str) -> dict[Settings, float]:
    """Return, for each setting of a method, its worst difference to the best of any other method.

    Settings that lack a task, since they diverged there, are left out.
    """
    shared = set.intersection(*(set(rows) for rows in tasks.values()))
    worst = {}
    for sets in (sets for sets in shared if name_of(sets) == method):
        differences = [
            mean(rows[sets], key) - best_other(rows, key, method)
            for rows in tasks.values()
            for key in COLUMNS
            if key in rows[sets]
        ]
        worst[sets] = min(differences)
    return worst


def best_other(rows: Rows, key: str, method: str) -> float:
    """Return the best mean of a column among the settings of other methods than this one."""
    others = [
        mean(row, key) for sets, row in rows.items() if name_of(sets) != method and key in row
    ]
    return max(others, default=0.0)


def finalists(tasks: Stage, count: int) -> list[Settings]:
    """Return the best settings: of ours several, each also changed, and of others one for each.

    Another method's setting is best if it is best for one task and column.
    """
    chosen: dict[Settings, None] = {}
    ours = merits(tasks, OURS)
    best = sorted(ours, key=lambda sets: -ours[sets])[:count]
    for sets, change in itertools.product(best, CHANGES):
        chosen[(*sets, *change)] = None
    for rows, key, method in itertools.product(tasks.values(), COLUMNS, GRIDS):
        own = [sets for sets in rows if name_of(sets) == method and key in rows[sets]]
        if own and method != OURS:
            chosen[max(own, key=lambda sets: mean(rows[sets], key))] = None
    return list(chosen)


def table(tasks: Stage, count: int) -> Table:
    """Return a table of each method's best settings, by their worst column."""
    found = Table("setting", "worst", *(f"{task}: own head / by prototype" for task in tasks))
    for method in GRIDS:
        worst = merits(tasks, method)
        for sets in sorted(worst, key=lambda sets: -worst[sets])[:count]:
            cells = [shown(rows, sets) for rows in tasks.values()]
            found.add_row(short(sets), f"{worst[sets]:+.2f}", *cells)
    return found


if __name__ == "__main__":
    tasks = {task: (HELD_BACK, *lines) for task, lines in TASKS.items()}
    others = [sets for method in GRIDS if method != OURS for sets in candidates(method)]
    carry_out(Search(tasks, candidates(OURS), others, finalists, table, (30, 60)), __doc__)
