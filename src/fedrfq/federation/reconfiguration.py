"""The committee's application where it has a federation.toml of its own that can be changed by agreement.

A server *moves* a new federation.toml by speaking as a client (client number K + s is server s). Once a quorum of servers has
moved the same text in one decided round, the round's verdicts end with it and the run is over: its last certificate certifies
the file by which the next run goes on, with the same prototypes, and of each party, by its name, what is remembered of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import Upload
from fedrfq.errors import UserError
from fedrfq.federation import codec
from fedrfq.federation.application import PrototypeApplication
from fedrfq.federation.federation_file import Federation
from fedrfq.robust.detectors import State

MOST = (
    1 << 22
)  # bytes of a federation.toml, and of a change proposal a few times as many as the present one has
_GROWTH = 4
_MORE = 1 << 16


@dataclass(frozen=True)
class ReconfigurableApplication(PrototypeApplication):
    """`heritage` is what the run before left to this one; none for a federation's first."""

    federation: Federation
    heritage: Outcome | None = None

    def start(self) -> Outcome:
        if self.heritage is None:
            return super().start()
        return self.heritage

    def refuses(self, upload: Upload) -> str | None:
        if upload.client < self.task.clients:
            return super().refuses(upload)
        return _refused(self.federation, upload.content)

    def decide(self, round_: int, before: Outcome, uploads: Sequence[Upload]) -> Outcome:
        change_proposals = Counter(
            upload.content for upload in uploads if upload.client >= self.task.clients
        )
        outcome = super().decide(
            round_, before, [upload for upload in uploads if upload.client < self.task.clients]
        )
        for text, servers in change_proposals.items():
            if servers >= self.federation.roster.quorum:
                return outcome._replace(verdicts=codec.append_successor(outcome.verdicts, text))
        return outcome

    def over(self, outcome: Outcome) -> bool:
        return bool(codec.successor_in(outcome.verdicts))


def reconfigurable(
    federation: Federation, heritage: Outcome | None = None
) -> ReconfigurableApplication:
    return ReconfigurableApplication(federation.task, federation, heritage)


@lru_cache(64)
def _refused(federation: Federation, content: bytes) -> str | None:
    """Why a text cannot be moved. Remembered: what is sent again is not read again."""
    try:
        read_successor(federation, content)
    except UserError as error:
        return str(error)
    return None


def read_successor(federation: Federation, content: bytes) -> Federation:
    """The federation of this text, if it can take the place of the given one."""
    most = min(MOST, _GROWTH * len(federation.text) + _MORE)
    if len(content) > most:
        raise UserError(
            f"a federation.toml of {len(content)} bytes: {most} at most, a few times as many as it has now"
        )
    try:
        new = Federation.read(content.decode(), "the new federation.toml")
    except UnicodeDecodeError as error:
        raise UserError("the new federation.toml is not UTF-8 text") from error
    if new.network is None or new.network.follows != federation.roster.run.hex():
        raise UserError(
            "the new federation.toml does not follow from this one: make it with `fedrfq committee change`"
        )
    shape = ("classes", "values", "precision", "rule")
    if any(getattr(new.task, key) != getattr(federation.task, key) for key in shape):
        raise UserError(
            "the new federation.toml has prototypes of another shape: that is another experiment, found it anew"
        )
    return new


def inherited_by(old: Federation, outcome: Outcome, new: Federation) -> Outcome:
    """What the next run starts from: the prototypes, and the detector's memory of each client, by its name (none for who
    never had it, as clients)."""
    if not outcome.state:
        return Outcome(outcome.globals_, b"", b"")
    memory = codec.encode_state(_remembered(old, codec.decode_state(outcome.state), new))
    return Outcome(outcome.globals_, b"", memory)


def _remembered(old: Federation, state: State, new: Federation) -> State:
    fresh = new.task.detector.start(new.task.clients)
    if new.task.detector != old.task.detector:
        return fresh
    places = {name: k for k, name in enumerate(_names(old))}
    pairs = [(places[name], k) for k, name in enumerate(_names(new)) if name in places]
    before, after = ([pair[side] for pair in pairs] for side in (0, 1))
    kept = {}
    for key, array in fresh.items():
        kept[key] = np.array(array)
        kept[key][after] = state[key][before]
    return kept


def _names(federation: Federation) -> list[str]:
    return [federation.members[~k].name for k in range(len(federation.clients))]
