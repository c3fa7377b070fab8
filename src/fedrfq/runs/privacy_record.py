"""What a run records of its clients' privacy: privacy.json, beside the uploads that it is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedrfq.experiment import Experiment
from fedrfq.files.strict_json import to_json
from fedrfq.privacy.accountant import check_installed
from fedrfq.privacy.claim import PrivacyClaim, check_budget
from fedrfq.runs.run_directory import RunDirectory

PRIVACY = "privacy.json"


def check(experiment: Experiment) -> None:
    """Raise a UserError where ε cannot be computed, or the budget pays for no upload at all."""
    if not experiment.privacy.used or experiment.uncovered():
        return
    check_installed()
    check_budget(experiment.privacy)


def save(run: RunDirectory, claims: Sequence[PrivacyClaim]) -> None:
    """Write what may be claimed of every client; nothing where there is no noise."""
    if claims:
        rows = [{"client": client, **made.table()} for client, made in enumerate(claims)]
        run.write(PRIVACY, to_json({"clients": rows}, indent=2) + "\n")


def summary(claims: Sequence[PrivacyClaim]) -> dict[str, Any]:
    """Return what a result says: the claim for the client that uploaded most."""
    if not claims:
        return {}
    return {"privacy": max(claims, key=lambda made: made.uploads).table()}
