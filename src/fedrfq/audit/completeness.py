"""What the logs of one run lack, all of them together, although each of them holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedrfq.audit.agreement import Log
from fedrfq.audit.log import Charge


@dataclass(frozen=True)
class Gaps:
    """The rounds up to the last that no log has, and those that no log has the uploads of.

    `newest` says that these are the last ones of a run that has not ended, and `all_servers` that
    every server's log is there.
    """

    run: str
    missing: tuple[int, ...]
    not_recomputed: tuple[int, ...]
    # The version by which the run was decided, if that is not this program's; 0 if it is.
    decided_by: int = 0
    newest: bool = False
    all_servers: bool = False


def find_gaps(run: bytes, logs: Sequence[Log], recompute: bool, last: int = 0) -> Gaps | None:
    """Return what is missing of a run, or None if nothing is.

    What is cut off at the end of all logs can be known only of a run that has ended: `last` is its
    last round. With `recompute`, every round must have been computed anew.
    """
    there = {audited.round for _, rounds in logs for audited in rounds}
    recomputed = {audited.round for _, rounds in logs for audited in rounds if audited.recomputed}
    missing = set(range(1, max(last, *there, 0) + 1)) - there
    not_recomputed = there - recomputed if recompute else set()
    if not missing and not not_recomputed:
        return None
    decided_by = max((audit.decided_otherwise for audit, _ in logs), default=0)
    # Without `last` nobody knows of an end, and nothing is missing before the newest rounds.
    newest = not last and min(missing | not_recomputed) > max(recomputed, default=0)
    with_uploads = [audit for audit, rounds in logs if any(one.recomputed for one in rounds)]
    return Gaps(
        run.hex(),
        tuple(sorted(missing)),
        tuple(sorted(not_recomputed)),
        decided_by,
        newest=newest,
        all_servers=bool(with_uploads) and len(with_uploads) == with_uploads[0].federation.roster.n,
    )


def charged_in(logs: Sequence[Log]) -> dict[tuple[str, str], list[str]]:
    """Return the paths of the logs that have evidence of each offence: who, and what it signed.

    Whoever keeps a log can strip evidence off it. The others have it still.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for audit, rounds in logs:
        charges: list[Charge] = [charge for audited in rounds for charge in audited.charges]
        for offence in dict.fromkeys((charge.who, charge.what) for charge in charges):
            found.setdefault(offence, []).append(str(audit.path))
    return found
