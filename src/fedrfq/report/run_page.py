"""The page of one run."""

from __future__ import annotations

from pathlib import Path

from fedrfq.experiment import Experiment, name_of
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.methods import METHODS
from fedrfq.report import all_classes, client_figures, committee_figures, curves, markup, rerun
from fedrfq.report.dropped import dropped
from fedrfq.report.figure import Figure
from fedrfq.report.leakage import leakage
from fedrfq.report.moving import moving
from fedrfq.report.page import ReportPage, Section
from fedrfq.report.projection import projection
from fedrfq.report.run_data import RunData
from fedrfq.runs.public_summary import origin_rows, other_rounds, statistics_bytes
from fedrfq.runs.summary import last_tested, points


def page(path: Path) -> ReportPage:
    """Show everything that the run directory holds."""
    run = RunData.read(path)
    experiment = run.experiment
    sections = [
        Section("What was run", markup.facts(run.settings)),
        Section("Results", markup.facts(_without(run.results, run.settings))),
        _public_map(experiment),
        *figures_of(run),
        leakage(path, run.notes),
        Section("Run it again", _rerun(run)),
        Section("Experiment", markup.pre(run.text, columns=True)),
    ]
    rounds = len(run.records)
    return ReportPage(
        title=title(run),
        subtitle=f"{experiment.name}, seed {experiment.seed} · {rounds} rounds · {path.name}",
        head=markup.tiles(tiles(experiment, run.records)) + markup.notes(run.notes),
        sections=[section for section in sections if section is not None],
    )


def figures_of(run: RunData) -> list[Section]:
    """Return the sections of all figures that there are data for."""
    sections = [
        _section("Accuracy", curves.accuracy(run)),
        _section("Clients", client_figures.accuracies(run)),
        _section(
            "All classes",
            all_classes.known(run),
            all_classes.recall(run),
            all_classes.calibration(run),
        ),
        _section("Classes and clients", client_figures.partition(run)),
        _section("Prototypes", projection(run), moving(run.trail, run.name_of)),
        _section("Filtered clients", dropped(run)),
        _section("Committee", committee_figures.views(run), committee_figures.messages(run)),
        _section("Traffic", curves.traffic(run)),
    ]
    return [section for section in sections if section is not None]


def title(run: RunData) -> str:
    """Return a heading that names the method, the data and the number of clients."""
    experiment = run.experiment
    method = name_of(METHODS, experiment.method)
    return f"{method} on {experiment.data.name}, {experiment.clients} clients"


def _section(title: str, *figures: Figure | None) -> Section | None:
    """Return a section of the figures that exist, or None if none does."""
    drawn = [figure for figure in figures if figure is not None]
    if not drawn:
        return None
    return Section(title, figures=drawn)


def _without(
    results: list[tuple[str, str]], settings: list[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Return the rows of `fedrfq show` that are not settings, which stand in their own section."""
    return [row for row in results if row not in settings]


def _public_map(experiment: Experiment) -> Section | None:
    """Return who vouches for the public map, its licence and its hash; None without a map."""
    rows = origin_rows(experiment.public)
    if not rows:
        return None
    return Section("Public map", markup.facts(rows))


def tiles(experiment: Experiment, records: list[RoundRecord]) -> list[tuple[str, str, str]]:
    """Return the key figures of the last round: label, value and remark."""
    if not records:
        return []
    last = records[-1]
    spread = f"± {last.accuracy_std:.2f} over clients"
    found = [("accuracy, own head", points(last.accuracy_mean), spread)]
    if last.prototype_accuracy_mean is not None:
        spread = f"± {last.prototype_accuracy_std or 0:.2f} over clients"
        found.append(("by nearest prototype", points(last.prototype_accuracy_mean), spread))
    tested = last_tested(records)
    if tested is not None:
        unheld = f"{points(tested.accuracy_unheld)} on classes a client does not hold"
        found.append(("on all classes", points(tested.accuracy_all), unheld))
    found += _uploaded(experiment, records)
    agreed = [record for record in records if record.view is not None]
    if agreed:
        changes = sum(record.view or 0 for record in agreed)
        proofs = sum(record.evidence or 0 for record in agreed)
        found.append(("view changes", f"{changes:,}", f"{proofs:,} proofs of misbehaviour"))
    return found


def _uploaded(experiment: Experiment, records: list[RoundRecord]) -> list[tuple[str, str, str]]:
    """Return a tile on what the method uploads, and one on the statistics on a public map."""
    tiles = []
    exchanges = [record for record in records if experiment.public.due(record.round)]
    if exchanges:
        last = exchanges[-1]
        up, _ = statistics_bytes(last)
        who = f"from all clients, in round {last.round}"
        tiles.append(("uploaded for the public map", length(up), who))
    others = other_rounds(experiment, records)
    if others:
        last = others[-1]
        values = f"{last.parameters_up:,} values from all clients"
        tiles.append(("uploaded per round", length(last.bytes_up), values))
    return tiles


def length(count: float) -> str:
    """Return a number of bytes with a unit."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"


def _rerun(run: RunData) -> str:
    """Return the commands that repeat the run, and what its figures depend on."""
    environment = run.environment
    name = run.experiment.data.name
    data = environment["data"]
    device = environment.get("device", "unknown")
    versions = environment["versions"].items()
    facts = [
        ("seed", str(run.experiment.seed)),
        ("revision", _revision(environment.get("revision"))),
        ("data", f"{data.get('name', name)}, sha256 {data.get('sha256', 'unknown')}"),
        ("device", f"{device}, {environment.get('threads', '?')} threads"),
        ("versions", ", ".join(f"{package} {version}" for package, version in versions if version)),
        ("experiment hash", run.experiment.hash()),
    ]
    return markup.facts(facts) + markup.pre("\n".join(rerun.lines(run)))


def _revision(revision: object) -> str:
    """Return the commit; the run marks one with uncommitted changes by a trailing plus."""
    if not revision:
        return "unknown"
    commit = str(revision)
    if commit.endswith("+"):
        return f"{commit[:-1]}, with uncommitted changes"
    return commit
