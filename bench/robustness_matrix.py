"""Attacks × detectors × numbers of attackers × kinds of unequal clients, by the worst attack.

    python bench/robustness_matrix.py --data mnist --device cuda         # all of it: use a GPU
    python bench/robustness_matrix.py --settings "3 ± 2" --attackers 4 --seeds 2 --rounds 20

Each setting is a robustness study of its own under OUT: `fedrfq robustness` runs it, and resumes it
if it was stopped. The summary has, for each setting, number of attackers and detector: the loss
under the worst attack by own head and by prototype, the least share won back of what an attack
costs undefended (if that is more than a point), the most honest weight lost, and the longest time
that any honest client was shut out. "none" among the attacks is peace.

bft, median and trimmed are told how many attack; adaptive is told a bound only with --told.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

# Clients are 20 throughout. Dirichlet clients of mnist5k have fewer samples: there are 4,000.
SETTINGS: dict[str, dict[str, Any]] = {
    "3 ± 2": {"partition": {"ways": 3, "spread": 2}},
    "5 ± 2": {"partition": {"ways": 5, "spread": 2}},
    "Dirichlet 0.1": {"partition": {"name": "dirichlet", "alpha": 0.1}},
    "Dirichlet 0.5": {"partition": {"name": "dirichlet", "alpha": 0.5}},
    "unique classes": {"partition": {"ways": 1, "spread": 1, "draw": "normal"}},
    "four models": {
        "partition": {"ways": 3, "spread": 2},
        "cohorts": [{"clients": 5, "channels": channels} for channels in (16, 18, 20, 22)],
    },
}
SMALL_DIRICHLET = {"samples": 120, "test_samples": 30}
ATTACKS = [
    *("none", "label-flip", "noise", "sign-flip", "scale", "swap", "random", "inflate", "ipm"),
    *("alie", "mimic", "min-max", "adaptive", "frame", "optimal-ipm", "optimal-alie"),
    *("optimal-frame", "optimal-swap", "drift", "sleeper", "backdoor", "sole", "groups"),
]
DETECTORS = ("none", "bft", "median", "trimmed", "adaptive")
# Points: of attacks that cost less undefended, no share won back is told.
_COSTLY = 1.0


def main() -> None:
    """Run the studies, and print and store the summary."""
    args = _arguments()
    rows = []
    for setting in args.settings:
        for attackers in args.attackers:
            study = _study(setting, attackers, args)
            _run(study, args)
            path = args.out / study["name"] / "table.json"
            rows += summary(setting, json.loads(path.read_text(encoding="utf-8")))
            (args.out / "matrix.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    Console().print(_table(rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="mnist5k", help="dataset (default: mnist5k)")
    parser.add_argument("--device", default="auto", help="device (default: auto)")
    parser.add_argument("--method", default="fedrfq", help="method (default: fedrfq)")
    parser.add_argument("--rounds", type=int, default=60, help="rounds (default: 60)")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0, 1, … (default: 5 of them)")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--attackers", nargs="+", type=int, default=[1, 2, 4, 6, 9])
    parser.add_argument("--attacks", nargs="+", default=ATTACKS)
    parser.add_argument("--detectors", nargs="+", default=list(DETECTORS), choices=DETECTORS)
    parser.add_argument(
        "--told", action="store_true", help="tell adaptive the number of attackers as its bound"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/matrix"))
    return parser.parse_args()


def _study(setting: str, attackers: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return a study of one setting and one number of attackers."""
    experiment = {
        "rounds": args.rounds,
        "checkpoint": args.rounds,
        "data": {"name": args.data},
        "method": {"name": args.method},
        **SETTINGS[setting],
    }
    partition = dict(SETTINGS[setting]["partition"])
    if args.data == "mnist5k" and partition.get("name") == "dirichlet":
        partition |= SMALL_DIRICHLET
    return {
        "name": f"{setting.replace('±', 'pm').replace(' ', '-')}-{attackers}-of-20",
        "kind": "robustness",
        "seeds": list(range(args.seeds)),
        "axes": {
            "attackers": [attackers],
            "attack": args.attacks,
            "detector": {name: _detector(name, attackers, args.told) for name in args.detectors},
        },
        "experiment": experiment | {"partition": partition},
    }


def _detector(name: str, attackers: int, told: bool) -> dict[str, Any]:
    """Return a detector's settings; those that drop a number of clients are told how many."""
    if name in ("bft", "median", "trimmed"):
        return {"detector": {"name": name, "psi": attackers}}
    if name == "adaptive" and told:
        return {"detector": {"name": name, "malicious": attackers}}
    return {}


def _run(study: Mapping[str, Any], args: argparse.Namespace) -> None:
    """Have `fedrfq robustness` run a study, or as much of it as is missing."""
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"{study['name']}.toml"
    lines = [f"{key} = {_inline(value)}" for key, value in study.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = ["robustness", str(path), "--no-models", "--device", args.device]
    command += ["--out", str(args.out)]
    program = "from fedrfq.cli.main import main; main()"
    subprocess.run([sys.executable, "-c", program, *command], check=True)


def _inline(value: Any) -> str:
    """Return a value as TOML, tables and all in one line."""
    if isinstance(value, Mapping):
        pairs = [f"{json.dumps(key)} = {_inline(inner)}" for key, inner in value.items()]
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value)


def summary(setting: str, whole: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each detector, from a robustness study's table.json."""
    cells = whole["cells"]
    undefended = {cell["attack"]: cell for cell in cells if cell["detector"] == "none"}
    rows = []
    for detector in dict.fromkeys(cell["detector"] for cell in cells):
        own = {cell["attack"]: cell for cell in cells if cell["detector"] == detector}
        row: dict[str, Any] = {
            "setting": setting,
            "attackers": cells[0]["attackers"],
            "detector": detector,
            "honest_weight_lost": max(c["honest_weight_lost"] or 0 for c in own.values()),
            "longest_shut_out": max(c["longest_shut_out"] or 0 for c in own.values()),
        }
        for name in ("own", "prototype"):
            row[name] = _scored(name, own, undefended)
        rows.append(row)
    return rows


def _scored(
    name: str, own: Mapping[str, Mapping[str, Any]], undefended: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a detector's cost in peace, its worst attack, and what it wins back at least."""
    lost = {attack: cell[f"{name}_loss"] for attack, cell in own.items()}
    points = {attack: loss["mean"] for attack, loss in lost.items() if loss is not None}
    peace = points.pop("none", None)
    scored: dict[str, Any] = {"peace": peace, "worst": None, "least_won_back": None}
    if points:
        worst = max(points, key=points.__getitem__)
        scored |= {"worst": worst, "worst_loss": points[worst]}
    won_back = {}
    for attack, after in points.items():
        before = undefended.get(attack, {}).get(f"{name}_loss")
        if before is not None and before["mean"] > _COSTLY:
            won_back[attack] = 1 - after / before["mean"]
    if won_back:
        least = min(won_back, key=won_back.__getitem__)
        scored |= {"least_won_back": won_back[least], "least_won_back_of": least}
    return scored


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the summary to look at: own head / prototype."""
    table = Table(
        *("setting", "attackers", "detector", "peace", "worst attack: points lost"),
        *("least won back", "honest weight lost, %", "longest shut out"),
    )
    for row in rows:
        both = [row["own"], row["prototype"]]
        table.add_row(
            row["setting"],
            str(row["attackers"]),
            row["detector"],
            " / ".join(_points(one["peace"]) for one in both),
            " / ".join(f"{one['worst']} {_points(one.get('worst_loss'))}" for one in both),
            " / ".join(_share(one) for one in both),
            f"{row['honest_weight_lost']:.2f}",
            str(row["longest_shut_out"]),
        )
    return table


def _points(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}"


def _share(scored: Mapping[str, Any]) -> str:
    if scored["least_won_back"] is None:
        return "–"
    return f"{100 * scored['least_won_back']:.0f} % ({scored['least_won_back_of']})"


if __name__ == "__main__":
    main()
