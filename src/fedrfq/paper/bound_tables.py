"""What became of Theorem 1's bound, for people: tables, and a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median

from fedrfq.paper.theorem import FORMS, MeasuredSetting, largest_lam, s8_holds, terms
from fedrfq.studies.plots import legend, pyplot, saved
from fedrfq.studies.sheets import Sheet

_TERMS = ("descent", "noise", "exchange", "gap", "change")
_SCALE = 1e-3  # below which a slack is drawn on a linear scale


def sheets(title: str, found: Mapping[str, MeasuredSetting]) -> list[Sheet]:
    return [_verdicts(title, found), _constants(found), _sizes(found)]


def _verdicts(title: str, found: Mapping[str, MeasuredSetting]) -> Sheet:
    first = (
        "setting",
        "bound",
        "rounds × clients",
        "it holds",
        "slack",
        "it promises a fall",
        "the loss fell",
    )
    header = (*first, "it allows the loss to double", "step s8 holds", "largest λ")
    rows = tuple(
        (label, form, *_verdict(one, FORMS[form])) for label, one in found.items() for form in FORMS
    )
    note = (
        "Printed: 2ε and L₂′ = k̂² − 1; corrected: 2λε and L₂′ as measured. Shares are of all rounds but the first of all "
        "clients, slacks are medians; the theorem bounds an expectation, and each round is one draw of it. A fall is "
        "promised where the bound is below the loss before the round. Step s8 of the proof loses a λ. With a λ above the "
        "largest, no step, however small, is promised to lower the loss in any round."
    )
    return Sheet(title, header, rows, note, labels=2)


def _verdict(one: MeasuredSetting, corrected: bool) -> tuple[str, ...]:
    changes = one.changes(corrected)
    slacks = one.slacks(corrected)
    shares = {
        "holds": [slack >= 0 for slack in slacks],
        "promised": [change < 0 for change in changes],
        "fell": [measured.loss_after < measured.loss_start for measured in one.rounds],
        "doubled": [
            change > measured.loss_start
            for measured, change in zip(one.rounds, changes, strict=True)
        ],
        "s8": [s8_holds(measured, one.constants, corrected) for measured in one.rounds],
    }
    holds, *rest = (f"{100 * fmean(cases):.0f} %" for cases in shares.values())
    lam = max(largest_lam(measured, one.constants, corrected) for measured in one.rounds)
    return (str(len(one.rounds)), holds, f"{median(slacks):.3g}", *rest, f"{lam:.2g}")


def _constants(found: Mapping[str, MeasuredSetting]) -> Sheet:
    names = {
        "eta": "η",
        "lam": "λ",
        "iterations": "E",
        "smoothness": "L_a, along the run",
        "curvature": "L_a, Hessian",
        "variance": "σ²",
        "norm": "G",
        "steepness": "L₂",
        "pooled": "L₂′, measured",
        "printed": "L₂′, printed",
        "epsilon": "ε",
    }
    rows = [
        (label, *(f"{getattr(one.constants, name):.4g}" for name in names))
        for label, one in found.items()
    ]
    note = "The largest values measured in the run; with η above 2 / L_a the theorem's descent is an ascent."
    return Sheet(
        "The constants of the assumptions", ("setting", *names.values()), tuple(rows), note
    )


def _sizes(found: Mapping[str, MeasuredSetting]) -> Sheet:
    rows = []
    for label, one in found.items():
        for form, corrected in FORMS.items():
            own = [terms(measured, one.constants, corrected) for measured in one.rounds]
            sizes = [
                median(getattr(each, name) for each in own)
                for name in ("descent", "noise", "exchange", "gap", "change")
            ]
            loss = median(measured.loss_start for measured in one.rounds)
            real = median(measured.loss_after - measured.loss_start for measured in one.rounds)
            rows.append((label, form, *(f"{value:.3g}" for value in (loss, real, *sizes))))
    header = (
        "setting",
        "terms",
        "loss before",
        "it changed by",
        "−(η − L_a η²/2) Σ ‖∇ℓ‖²",
        "L_a E η² σ² / 2",
    )
    return Sheet(
        "The terms, medians", (*header, "λ L₂ L₂′ η E G", "2ε or 2λε", "sum"), tuple(rows), labels=2
    )


def drawn(path: Path, title: str, found: Mapping[str, MeasuredSetting]) -> Path:
    """The first client's loss under its bound, and the slacks of all."""
    plt = pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(13.5, 4.6), layout="constrained")
    for i, (label, one) in enumerate(found.items()):
        pairs = zip(one.rounds, one.changes(True), strict=True)
        own = [(measured, change) for measured, change in pairs if measured.client == 0]
        at = [str(measured.round) for measured, _ in own]
        left.plot(
            at, [measured.loss_after for measured, _ in own], color=f"C{i}", label=f"{label}: loss"
        )
        bounds = [measured.loss_start + change for measured, change in own]
        left.plot(at, bounds, color=f"C{i}", linestyle="--", label=f"{label}: bound, corrected")
        for form, corrected in FORMS.items():
            slacks = one.slacks(corrected)
            right.plot(
                slacks, [f"{label}, {form}"] * len(slacks), "|", color=f"C{i}", markersize=14
            )
    left.set(
        title="client 0", xlabel="round", ylabel="ℓ with the globals that came back", yscale="log"
    )
    right.axvline(0, color="black", linewidth=0.8)
    right.set_xscale("symlog", linthresh=_SCALE)
    right.set(title="bound − loss, all clients and rounds")
    right.tick_params(axis="x", labelsize=7)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    legend(figure, [left], title)
    return saved(plt, figure, path)
