"""The section on what uploads reveal, where `fedrfq audit-privacy` has attacked the run."""

from __future__ import annotations

from pathlib import Path

from fedrfq.errors import UserError
from fedrfq.leakage.rebuilt import COLUMNS
from fedrfq.leakage.record import LeakageFigures, load_pictures
from fedrfq.leakage.words import EXPLAINED, counts_text, inversion_rows, membership_rows
from fedrfq.report import markup
from fedrfq.report.page import Section


def leakage(path: Path, notes: list[str]) -> Section | None:
    """Return what the audit found; None without one. What cannot be read becomes a note."""
    try:
        found = LeakageFigures.load(path)
        pictures = load_pictures(path)
    except UserError as error:
        notes.append(str(error))
        return None
    if found is None:
        return None
    header, *rows = membership_rows(found)
    body = markup.paragraphs([EXPLAINED]) + markup.table(header, rows, numbers=4)
    header, *rows = inversion_rows(found)
    if rows:
        body += markup.table(header, rows, numbers=4)
    if pictures:
        order = "; ".join(COLUMNS)
        body += markup.png(pictures, "images made from uploads")
        body += markup.paragraphs([f"From left to right: {order}. A row is an upload of a class."])
    body += markup.paragraphs([*counts_text(found.counts), *found.notes])
    how = f"{found.shadows} shadow federations, seed {found.seed}, revision {found.revision}"
    return Section("What uploads reveal", body + markup.paragraphs([f"Measured with {how}."]))
