"""The facts of a run for people to read, as labelled rows, and its accuracy curve as a picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedrfq.committee import Direct
from fedrfq.data.partition import PARTITIONS
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, name_of
from fedrfq.experiment.kinds import KINDS
from fedrfq.files.pictures import save_png, subplots
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.methods import METHODS
from fedrfq.robust.attacks import ATTACKS
from fedrfq.robust.detectors import DETECTORS
from fedrfq.robust.detectors.none import NoDetection
from fedrfq.runs import privacy_record
from fedrfq.runs.influence import influence
from fedrfq.runs.public_summary import exchange_rows, other_rounds
from fedrfq.runs.run_directory import RunDirectory


def rows(run: RunDirectory) -> list[tuple[str, str]]:
    """Return the settings and results of a run, finished or not, as pairs of label and text."""
    experiment = run.experiment()
    records = run.rounds()
    result = run.result() or {}
    environment = run.environment()
    with _reporting_wrong_types(run):
        return _rows(experiment, records, result, environment) + privacy_record.rows(run)


@contextmanager
def _reporting_wrong_types(run: RunDirectory) -> Iterator[None]:
    """Turn what values of hostile files do to the block into a UserError."""
    try:
        yield
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError) as error:
        raise UserError(
            f"{run.path}: result.json, privacy.json or environment.json holds values of the wrong "
            "type: "
            "restore the files"
        ) from error


def settings(run: RunDirectory) -> list[tuple[str, str]]:
    """Return what was run, and nothing of what came of it, as pairs of label and text."""
    experiment = run.experiment()
    train = experiment.train
    who = f"{experiment.clients}"
    if experiment.participation < 1:
        who += f", of which {100 * experiment.participation:g} % take part in a round"
    epochs = "1 epoch" if train.epochs == 1 else f"{train.epochs} epochs"
    with _reporting_wrong_types(run):
        partition = _partition(experiment, run.environment())
    return [
        ("method", name_of(METHODS, experiment.method)),
        ("data", experiment.data.name),
        ("clients", who),
        ("model", _models(experiment)),
        partition,
        ("rounds", f"{experiment.rounds}, each of {epochs} in batches of {train.batch_size}"),
        *_attack(experiment),
        ("detector", name_of(DETECTORS, experiment.detector)),
        ("committee", _servers(experiment)),
        ("seed", str(experiment.seed)),
    ]


def _models(experiment: Experiment) -> str:
    """Return the clients' models by name, and how many clients have each where they differ."""
    if not experiment.cohorts:
        return name_of(KINDS["model"], experiment.model)
    named = [
        (name_of(KINDS["model"], cohort.model), cohort.clients) for cohort in experiment.cohorts
    ]
    return ", ".join(f"{name} ({clients} clients)" for name, clients in named)


def _servers(experiment: Experiment) -> str:
    if isinstance(experiment.committee, Direct):
        return "one trusted server"
    return experiment.committee.about()


def title(experiment: Experiment) -> str:
    """Return a heading that names the method, the data, the number of clients and the seed."""
    method = name_of(METHODS, experiment.method)
    noun = "client" if experiment.clients == 1 else "clients"
    who = f"{experiment.clients} {noun}"
    return f"{method} on {experiment.data.name}, {who}, seed {experiment.seed}"


def _rows(
    experiment: Experiment,
    records: Sequence[RoundRecord],
    result: dict[str, Any],
    environment: dict[str, Any],
) -> list[tuple[str, str]]:
    rows = [
        _partition(experiment, environment),
        ("rounds", f"{len(records)} of {experiment.rounds}"),
    ]
    if not records:
        return rows
    last = records[-1]
    rows += [
        (
            "accuracy, own head",
            f"{last.accuracy_mean:.2f} % ± {last.accuracy_std:.2f} over clients",
        ),
        ("accuracy, nearest prototype", _accuracy(last)),
        *_all_classes(experiment, records),
        ("prototype failure", _share(last.prototype_failure)),
    ]
    if result:
        pooled = _number(result.get("silhouette"))
        unpooled = _number(result.get("silhouette_unpooled"))
        rows.append(("silhouette", f"{pooled} (unpooled {unpooled})"))
    train = sum(r.samples for r in records) / sum(r.seconds_train for r in records)
    rows += [
        *exchange_rows(experiment, records),
        ("uploaded per round", _uploaded(experiment, records)),
        ("trained", f"{train:,.0f} samples a second"),
        ("took", f"{sum(r.seconds for r in records):.1f} s"),
    ]
    rows += _defence(experiment, records, result) + _committee(experiment, records)
    if last.collapsed_clients:
        rows.append(
            (
                "collapsed",
                f"{last.collapsed_clients} clients: prototypes near 0, or all features alike",
            )
        )
    if last.saturated:
        rows.append(
            (
                "saturated",
                f"{last.saturated} values were outside the fixed-point range in the last round",
            )
        )
    return rows


def _partition(experiment: Experiment, environment: dict[str, Any]) -> tuple[str, str]:
    dealt = environment.get("partition", {})
    held = (
        f"{dealt.get('classes_mean', 0):.2f} ± {dealt.get('classes_std', 0):.2f} classes per client"
    )
    return "partition", f"{name_of(PARTITIONS, experiment.partition)}: {held}"


def _all_classes(experiment: Experiment, records: Sequence[RoundRecord]) -> list[tuple[str, str]]:
    """Return rows on the newest test on all classes, of every way to predict."""
    label = "accuracy, all classes"
    tested = last_tested(records)
    if tested is None:
        reason = "no common test set"
        if len(records) < min(experiment.checkpoint, experiment.rounds):
            reason = "not tested yet"
        return [(label, f"– ({reason})")]
    held = f"held {points(tested.accuracy_held)}, not held {points(tested.accuracy_unheld)}"
    worst = f"worst client {points(tested.accuracy_all_worst)}"
    rows = [(label, f"{points(tested.accuracy_all)} ({held}; {worst})")]
    if tested.answered is not None:
        answered = f"{points(tested.answered)} of the samples, {points(tested.accuracy_answered)}"
        rows.append(("… at least as sure as the threshold", f"{answered} of them rightly"))
    ways = {"prototype": "… by nearest prototype"}
    if experiment.public.used:
        # Without a map the final prediction is the head's, which need not be said twice.
        ways = {"public": "… by public map alone", "head": "… by own head alone", **ways}
    for way, name in ways.items():
        figures = [getattr(tested, f"{way}_accuracy_{part}") for part in ("all", "held", "unheld")]
        if figures[0] is not None:
            on_all, on_held, on_unheld = map(points, figures)
            rows.append((name, f"{on_all} (held {on_held}, not held {on_unheld})"))
    return [*rows, _calibration(tested, ways)]


def _calibration(tested: RoundRecord, ways: Mapping[str, str]) -> tuple[str, str]:
    """Return the row on how far confidence and accuracy lie apart, in every way to predict."""
    figures = {name.removeprefix("… "): getattr(tested, f"{way}_ece") for way, name in ways.items()}
    others = [f"{points(ece)} {name}" for name, ece in figures.items() if ece is not None]
    text = points(tested.ece)
    if others:
        text += f" ({', '.join(others)})"
    return "calibration error (ECE)", text


def _uploaded(experiment: Experiment, records: Sequence[RoundRecord]) -> str:
    """Return what all clients uploaded in the last round without an exchange on a public map."""
    others = other_rounds(experiment, records)
    if others and others[-1].parameters_up:
        return (
            f"{others[-1].parameters_up:,} values, {others[-1].bytes_up:,} bytes from all clients"
        )
    if experiment.public.used:
        return "nothing but the statistics on the public map"
    return "nothing"


def last_tested(records: Sequence[RoundRecord]) -> RoundRecord | None:
    """Return the newest record that has figures of the test on all classes."""
    return next((record for record in reversed(records) if record.accuracy_all is not None), None)


def _defence(
    experiment: Experiment, records: Sequence[RoundRecord], result: dict[str, Any]
) -> list[tuple[str, str]]:
    """Return rows on the attack and the detector; none where there is neither."""
    last = records[-1]
    rows = _attack(experiment)
    if experiment.attack.clients:
        head, prototype = (
            points(mean)
            for mean in (last.honest_accuracy_mean, last.honest_prototype_accuracy_mean)
        )
        rows.append(("accuracy, honest clients", f"{head}; by prototype {prototype}"))
    dropped = sum(len(record.filtered) + len(record.refused) for record in records)
    if dropped or not isinstance(experiment.detector, NoDetection):
        precision = _percent(result.get("detector_precision"))
        recall = _percent(result.get("detector_recall"))
        name = name_of(DETECTORS, experiment.detector)
        rows.append(
            (
                "detector",
                f"{name}: {dropped} uploads dropped; precision {precision}, recall {recall}",
            )
        )
        cost = influence(experiment, records)
        if cost["honest_weight_lost"] is not None:
            lost = f"{cost['honest_weight_lost']:.2f} % of their weight"
            out = f"out for at most {cost['longest_shut_out']} rounds in a row"
            rows.append(("honest clients lost", f"{lost}; {out}"))
    return rows


def _attack(experiment: Experiment) -> list[tuple[str, str]]:
    """Return a row on the attack; none where there is none."""
    attack = experiment.attack
    if not attack.clients:
        return []
    noun = "client" if attack.clients == 1 else "clients"
    who = f"{attack.clients} {noun} from round {attack.start_round} on"
    return [("attack", f"{name_of(ATTACKS, attack)} by {who}")]


def _committee(experiment: Experiment, records: Sequence[RoundRecord]) -> list[tuple[str, str]]:
    """Return rows on the committee; none with one trusted server."""
    taken = [
        (r.view, r.evidence, r.committee_messages, r.committee_bytes)
        for r in records
        if r.view is not None
    ]
    if not taken:
        return []
    changes, evidence, messages, length = (sum(column) for column in zip(*taken, strict=True))
    each = f"{messages / len(taken):,.0f} messages, {length / len(taken):,.0f} bytes per round"
    return [
        ("committee", experiment.committee.about()),
        ("agreement", f"{each}; {changes} view changes, {evidence} proofs of misbehaviour"),
    ]


def points(value: float | None) -> str:
    """Return a percentage, or a dash where there is none."""
    if value is None:
        return "–"
    return f"{value:.2f} %"


def _percent(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{100 * value:.1f} %"


def _accuracy(record: RoundRecord) -> str:
    if record.prototype_accuracy_mean is None or record.prototype_accuracy_own_mean is None:
        return "– (no prototypes are exchanged)"
    among_own = f"{record.prototype_accuracy_own_mean:.2f} % among own classes"
    return f"{record.prototype_accuracy_mean:.2f} % ({among_own})"


def _share(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{100 * value:.2f} % of pairs"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}"


def plot(run: RunDirectory) -> Path:
    """Draw accuracy.png in the run directory: the mean over clients with one standard deviation."""
    records = run.rounds()
    figure, [[axes]] = subplots((7, 4.2))
    draw(axes, records)
    axes.set(title=title(run.experiment()), xlabel="round", ylabel="test accuracy over clients (%)")
    axes.set_ylim(top=101)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    return save_png(figure, run.path / "accuracy.png")


def draw(axes: Any, records: Sequence[RoundRecord]) -> None:
    """Draw the curves of accuracy: on held classes by head and by prototype, and on all classes."""
    _curve(axes, records, "accuracy_mean", "accuracy_std", label="own head", colour="C0")
    if records and records[-1].prototype_accuracy_mean is not None:
        _curve(
            axes,
            records,
            "prototype_accuracy_mean",
            "prototype_accuracy_std",
            label="nearest global prototype",
            colour="C1",
        )
    # Only some rounds have the test on all classes: each of them gets a mark.
    tested = [record for record in records if record.accuracy_all is not None]
    if tested:
        rounds = [record.round for record in tested]
        accuracies = [record.accuracy_all for record in tested]
        axes.plot(rounds, accuracies, color="C2", marker="o", label="all classes, final prediction")


def _drawable(value: float | None) -> float:
    # A record has null where a figure is not a number.
    return math.nan if value is None else value


def _curve(
    axes: Any, records: Sequence[RoundRecord], mean: str, std: str, *, label: str, colour: str
) -> None:
    rounds = [record.round for record in records]
    middle = [_drawable(getattr(record, mean)) for record in records]
    spread = [_drawable(getattr(record, std)) for record in records]
    low = [m - s for m, s in zip(middle, spread, strict=True)]
    high = [min(100.0, m + s) for m, s in zip(middle, spread, strict=True)]
    axes.plot(rounds, middle, color=colour, label=f"{label} (± std over clients)")
    axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
