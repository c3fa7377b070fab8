"""Check what remains after clients have taken statistics back, and say who has.

This needs neither the uploads that were taken back nor the rounds before: what the state keeps is
checked to be what clients sent, by the certified sets, and the statistics to follow from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import Entries, Upload
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Refused
from fedrfq.federation import codec
from fedrfq.federation.application import PrototypeApplication
from fedrfq.federation.retained import (
    Retained,
    is_replacing,
    is_withdrawal,
    retained_in,
    statistics_of,
)
from fedrfq.prototypes.fixed_point import origin


def taken_back(uploads: Iterable[Upload]) -> dict[int, str]:
    """Return the clients that took statistics back in a round: all of them, or some."""
    return {
        upload.client: "all" if is_withdrawal(upload.content) else "some"
        for upload in uploads
        if is_replacing(upload.content)
    }


def check_remaining(
    rules: Rules,
    application: PrototypeApplication,
    sets: Mapping[int, Entries] | None,
    outcome: Outcome,
) -> None:
    """Refuse a certified outcome whose statistics do not follow from what clients sent.

    `sets` are the certified sets of the rounds seen so far; None where clients may have sent
    statistics in an earlier run.
    """
    retained = retained_in(codec.decode_state(outcome.state))
    if sets is not None:
        _check_sent(rules, retained, sets)
    if application.statistics(retained) != outcome.public:
        raise Refused("computed anew from what the state keeps, PUBLIC is not what was certified")


def _check_sent(rules: Rules, retained: Retained, sets: Mapping[int, Entries]) -> None:
    for client, content in retained.items():
        round_, _ = origin(statistics_of(content))
        digest = rules.unsigned(Upload(round_, client, content)).digest
        # A log need not have the set of every round.
        if round_ in sets and (client, digest) not in sets[round_]:
            raise Refused(f"the state keeps statistics that client {client} did not send")
