"""The page of one run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from fedrfq.data import DATASETS
from fedrfq.experiment import name_of
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.methods import METHODS
from fedrfq.report import client_figures, committee_figures, curves, markup
from fedrfq.report.dropped import dropped
from fedrfq.report.figure import Figure
from fedrfq.report.page import ReportPage, Section
from fedrfq.report.projection import projection
from fedrfq.report.run_data import RunData


def page(path: Path) -> ReportPage:
    """All there is to show of the run in the directory."""
    run = RunData.read(path)
    experiment = run.experiment
    subtitle = (
        f"{experiment.name}, seed {experiment.seed} · {len(run.records)} rounds · {path.name}"
    )
    sections = [
        Section("What was run", markup.facts(run.facts)),
        _drawn("Accuracy", curves.accuracy(run)),
        _drawn("Clients", client_figures.accuracies(run)),
        _drawn("Classes and clients", client_figures.partition(run)),
        _drawn("Prototypes", projection(run)),
        _drawn("Filtered clients", dropped(run)),
        _drawn("Committee", committee_figures.views(run), committee_figures.messages(run)),
        _drawn("Traffic", curves.traffic(run)),
        Section("Run it again", _again(run)),
        Section("Experiment", markup.pre(run.text, columns=True)),
    ]
    head = markup.tiles(_tiles(run.records)) + markup.notes(run.notes)
    return ReportPage(
        _title(run), subtitle, head, [section for section in sections if section is not None]
    )


def _title(run: RunData) -> str:
    experiment = run.experiment
    return f"{name_of(METHODS, experiment.method)} on {experiment.data.name}, {experiment.clients} clients"


def _drawn(title: str, *figures: Figure | None) -> Section | None:
    """A section of the figures that there are; none without any."""
    found = [figure for figure in figures if figure is not None]
    if found:
        return Section(title, figures=found)
    return None


def _tiles(records: list[RoundRecord]) -> list[tuple[str, str, str]]:
    if not records:
        return []
    last = records[-1]
    tiles = [
        (
            "accuracy, own head",
            points(last.accuracy_mean),
            f"± {last.accuracy_std:.2f} over clients",
        ),
        (
            "by nearest prototype",
            points(last.prototype_accuracy_mean),
            f"± {last.prototype_accuracy_std or 0:.2f} over clients",
        ),
        (
            "uploaded a round",
            length(last.bytes_up),
            f"{last.parameters_up:,} values from all clients",
        ),
    ]
    if last.prototype_accuracy_mean is None:
        del tiles[1]
    agreed = [record for record in records if record.view is not None]
    if agreed:
        proofs = f"{sum(record.evidence or 0 for record in agreed):,} proofs of lies"
        tiles.append(("view changes", f"{sum(record.view or 0 for record in agreed):,}", proofs))
    return tiles


def points(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f} %"


def length(count: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"


def _again(run: RunData) -> str:
    """The command, and what the figures depend on."""
    known = run.environment
    experiment = run.experiment
    data = known["data"]
    versions = known["versions"]
    lines = [f"fedrfq run {shlex.quote(str(run.path / 'experiment.toml'))}{_device(known)}"]
    if experiment.data.name in DATASETS and not DATASETS[experiment.data.name].built_in:
        lines.insert(0, f"fedrfq data get {experiment.data.name}")
    facts = [
        ("seed", str(experiment.seed)),
        ("revision", _revision(known.get("revision"))),
        (
            "data",
            f"{data.get('name', experiment.data.name)}, sha256 {data.get('sha256', 'unknown')}",
        ),
        ("device", f"{known.get('device', 'unknown')}, {known.get('threads', '?')} threads"),
        (
            "versions",
            ", ".join(f"{name} {version}" for name, version in versions.items() if version),
        ),
        ("experiment's hash", experiment.hash()),
    ]
    return markup.facts(facts) + markup.pre("\n".join(lines))


def _device(known: dict[str, Any]) -> str:
    kind = known.get("device_type")
    if kind in ("cpu", "cuda"):
        return f" --device {kind}"
    return ""


def _revision(found: object) -> str:
    if not found:
        return "unknown"
    if str(found).endswith("+"):
        return f"{str(found)[:-1]}, with changes that were not committed"
    return str(found)
