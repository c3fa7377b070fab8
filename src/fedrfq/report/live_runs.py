"""Pages of runs while they go on: of one run, and of several side by side."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedrfq.report import markup, run_page
from fedrfq.report.comparison_page import compared
from fedrfq.report.groups import Brief, left_out, readable
from fedrfq.report.page import ReportPage
from fedrfq.report.run_data import RunData
from fedrfq.report.unchanged import Unchanged
from fedrfq.runs.find_runs import MAX_RUNS
from fedrfq.runs.progress import FINISHED, RUNNING, RunProgress, duration

# The files that change while a run goes on, and when it ends.
_CHANGING = ("rounds.jsonl", "clients.csv", "trail.jsonl", "result.json", "prototypes.safetensors")
_BACK = f"<p>{markup.Link('All runs', './').html()}</p>"


def key(path: Path) -> str:
    """Return what a run's page is asked for by: no path is ever read from an address."""
    return hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]


class LiveRuns:
    """Makes the page of one run, or of several, as they are now."""

    def __init__(self) -> None:
        self._run = Unchanged(RunData.read, _CHANGING)
        self._brief = Unchanged(Brief.read, _CHANGING)

    def one(self, path: Path, among: bool = False) -> ReportPage:
        """Return the page of a run, with how far it is above everything that a report shows.

        Where it is one `among` others, it leads back to them.
        """
        run = self._run(path)
        progress = RunProgress.read(path)
        experiment = run.experiment
        tiles = [*_progress_tiles([progress]), *run_page.tiles(experiment, run.records)]
        return ReportPage(
            title=run_page.title(run),
            subtitle=f"{experiment.name}, seed {experiment.seed} · {progress.state} · {path.name}",
            head=(_BACK if among else "")
            + markup.tiles(tiles)
            + markup.notes(_still_true(run.notes)),
            sections=run_page.figures_of(run),
        )

    def several(self, paths: Sequence[Path]) -> ReportPage:
        """Return the page that compares runs, and says of each how far it is."""
        notes = []
        if len(paths) > MAX_RUNS:
            notes.append(f"Only the newest {MAX_RUNS} of {len(paths)} runs are shown.")
        runs, errors = readable(paths[:MAX_RUNS], self._brief)
        notes += left_out(errors)
        if not runs:
            return waiting("; ".join(notes) or "There is no run yet.")
        progress = [RunProgress.read(run.path) for run in runs]
        page = compared(runs, ())
        tiles = markup.tiles(_progress_tiles(progress))
        head = tiles + markup.notes(notes) + _table(progress)
        return replace(page, head=head, left_out=notes)


def waiting(why: str) -> ReportPage:
    """Return a page without anything to show yet."""
    return ReportPage("Waiting for a run", why, markup.notes([why]), [])


def _still_true(notes: Sequence[str]) -> list[str]:
    """Leave out that a run has not finished, which a page of a run that goes on need not say."""
    return [note for note in notes if not note.startswith("The run has not finished")]


def _progress_tiles(runs: Sequence[RunProgress]) -> list[tuple[str, str, str]]:
    """Return tiles on the rounds that are done and the time that is left."""
    done = sum(run.done for run in runs)
    rounds = sum(run.rounds for run in runs)
    running = [run for run in runs if run.state == RUNNING]
    about = runs[0].state
    if len(runs) > 1:
        finished = sum(run.state == FINISHED for run in runs)
        about = f"{finished} of {len(runs)} runs finished, {len(running)} running"
    tiles = [("rounds", f"{done:,} of {rounds:,}", about)]
    left = [run.seconds_left for run in running if run.seconds_left is not None]
    if left:
        # Runs that are trained at the same time end with the slowest of them.
        speed = max(run.seconds_a_round or 0.0 for run in running)
        tiles.append(("time left", duration(max(left)), f"at {speed:.2f} s a round"))
    return tiles


def _table(runs: Sequence[RunProgress]) -> str:
    header = ["run", "state", "rounds", "accuracy %", "time left"]
    rows = [
        [
            markup.Link(run.path.name, f"?run={key(run.path)}"),
            run.state,
            f"{run.done} of {run.rounds}",
            "–" if run.accuracy is None else f"{run.accuracy:.2f}",
            duration(run.seconds_left),
        ]
        for run in runs
    ]
    return f"<section><h2>Progress</h2>{markup.table(header, rows, numbers=3)}</section>"
