"""Tables and a picture of Theorem 1's bound compared with measured losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

from fedrfq.files.pictures import save_png, subplots
from fedrfq.paper.theorem import FORMS, MeasuredSetting, largest_lam, s8_holds, terms
from fedrfq.studies.pictures import legend
from fedrfq.studies.sheets import Sheet

_TERMS = {
    "descent": "−(η − L_a η²/2) Σ ‖∇ℓ‖²",
    "noise": "L_a E η² σ² / 2",
    "exchange": "λ L₂ L₂′ η E G",
    "gap": "2ε or 2λε",
    "change": "sum",
}
_CONSTANTS = {
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
_LINEAR_BELOW = 1e-3  # smaller slacks are drawn on a linear scale, larger ones on a logarithmic one


def sheets(title: str, settings: Mapping[str, MeasuredSetting]) -> list[Sheet]:
    """Return the tables of verdicts, of constants and of the sizes of the terms."""
    return [_verdicts(title, settings), _constants(settings), _sizes(settings)]


def _verdicts(title: str, settings: Mapping[str, MeasuredSetting]) -> Sheet:
    header = (
        "setting",
        "bound",
        "rounds × clients",
        "bound holds",
        "slack",
        "bound promises a fall",
        "loss fell",
        "bound allows the loss to double",
        "step s8 holds",
        "largest λ",
    )
    rows = tuple(
        (label, form, *_verdict(setting, corrected))
        for label, setting in settings.items()
        for form, corrected in FORMS.items()
    )
    note = (
        "Printed: 2ε and L₂′ = k̂² − 1. Corrected: 2λε and L₂′ as measured. Shares are taken over "
        "all clients and all rounds but the first; slacks are medians. The theorem bounds an "
        "expectation, and each round is one draw of it. The bound promises a fall if it is below "
        "the loss before the round. Step s8 of the proof loses a λ. With a λ above the largest, no "
        "step, however small, is promised to lower the loss in any round."
    )
    return Sheet(title, header, rows, note, labels=2)


def _verdict(setting: MeasuredSetting, corrected: bool) -> tuple[str, ...]:
    rounds = setting.rounds
    constants = setting.constants
    changes = setting.changes(corrected)
    slacks = setting.slacks(corrected)
    starts = [measured.loss_start for measured in rounds]
    lam = max(largest_lam(measured, constants, corrected) for measured in rounds)
    return (
        str(len(rounds)),
        _share([slack >= 0 for slack in slacks]),
        f"{median(slacks):.3g}",
        _share([change < 0 for change in changes]),
        _share([measured.loss_after < measured.loss_start for measured in rounds]),
        _share([change > start for change, start in zip(changes, starts, strict=True)]),
        _share([s8_holds(measured, constants, corrected) for measured in rounds]),
        f"{lam:.2g}",
    )


def _share(cases: Sequence[bool]) -> str:
    return f"{100 * fmean(cases):.0f} %"


def _constants(settings: Mapping[str, MeasuredSetting]) -> Sheet:
    rows = [
        (label, *(f"{getattr(setting.constants, name):.4g}" for name in _CONSTANTS))
        for label, setting in settings.items()
    ]
    header = ("setting", *_CONSTANTS.values())
    note = (
        "The largest values measured in the run. If η is above 2 / L_a, the theorem's descent term "
        "is an ascent."
    )
    return Sheet("The constants of the assumptions", header, tuple(rows), note)


def _sizes(settings: Mapping[str, MeasuredSetting]) -> Sheet:
    rows = []
    for label, setting in settings.items():
        loss = median(measured.loss_start for measured in setting.rounds)
        change = median(measured.loss_after - measured.loss_start for measured in setting.rounds)
        for form, corrected in FORMS.items():
            bounds = [terms(measured, setting.constants, corrected) for measured in setting.rounds]
            sizes = [median(getattr(bound, name) for bound in bounds) for name in _TERMS]
            rows.append((label, form, *(f"{value:.3g}" for value in (loss, change, *sizes))))
    header = ("setting", "bound", "loss before", "measured change", *_TERMS.values())
    return Sheet("The terms of the bound, medians", header, tuple(rows), labels=2)


def drawn(path: Path, title: str, settings: Mapping[str, MeasuredSetting]) -> Path:
    """Draw the first client's loss under its bound, and the slacks of all clients."""
    figure, [[left, right]] = subplots((13.5, 4.6), 1, 2)
    for i, (label, setting) in enumerate(settings.items()):
        colour = f"C{i}"
        pairs = zip(setting.rounds, setting.changes(True), strict=True)
        first_client = [(measured, change) for measured, change in pairs if measured.client == 0]
        rounds = [str(measured.round) for measured, _ in first_client]
        losses = [measured.loss_after for measured, _ in first_client]
        bounds = [measured.loss_start + change for measured, change in first_client]
        left.plot(rounds, losses, color=colour, label=f"{label}: loss")
        left.plot(rounds, bounds, color=colour, linestyle="--", label=f"{label}: bound, corrected")
        for form, corrected in FORMS.items():
            slacks = setting.slacks(corrected)
            names = [f"{label}, {form}"] * len(slacks)
            right.plot(slacks, names, "|", color=colour, markersize=14)
    left.set(
        title="client 0", xlabel="round", ylabel="ℓ with the globals that came back", yscale="log"
    )
    # Left of this line the bound is broken.
    right.axvline(0, color="black", linewidth=0.8)
    right.set_xscale("symlog", linthresh=_LINEAR_BELOW)
    right.set(title="bound − loss, all clients and rounds")
    right.tick_params(axis="x", labelsize=7)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    legend(figure, [left], title)
    return save_png(figure, path)
