"""The table that `fedrfq run`, `resume` and `show` print about a run."""

from __future__ import annotations

from rich.table import Table

from fedrfq.runs.run_directory import RunDirectory
from fedrfq.runs.summary import rows, title


def run_table(run: RunDirectory) -> Table:
    """Return the settings and results of a run, finished or not, as a table of two columns."""
    table = Table(title=title(run.experiment()), show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    for label, value in rows(run):
        table.add_row(label, value)
    return table
