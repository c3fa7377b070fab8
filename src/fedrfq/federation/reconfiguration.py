"""The application of a committee whose federation.toml can be changed by agreement.

Servers propose a new federation.toml. Once a quorum of them has proposed the same text in one
decided round, the round's record names it as the successor and the run is over. So the run's last
certificate certifies the file by which the next run goes on, with the same prototypes and public
statistics and with what the detector remembers of each client, by its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedrfq.consensus.events import Outcome
from fedrfq.errors import UserError
from fedrfq.federation import codec
from fedrfq.federation.application import PrototypeApplication
from fedrfq.federation.federation_file import Federation, NewerProtocol
from fedrfq.federation.retained import Retained, retained_in, retaining
from fedrfq.robust.aggregation import detector_state, rule_part
from fedrfq.robust.state import State

MOST = 1 << 22  # bytes of a federation.toml
# A proposal may have four times the bytes of the present file and 64 KiB more: enough to grow, but
# a faulty server cannot make the others store much.
_MAX_GROWTH = 4
_EXTRA_BYTES = 1 << 16


@dataclass(frozen=True)
class ReconfigurableApplication(PrototypeApplication):
    """The committee's application in a federation that can be changed.

    `inherited` is what the previous run left to this one; None for a federation's first run.
    """

    federation: Federation
    inherited: Outcome | None = None

    def start(self) -> Outcome:
        """Return the outcome that the first round starts from."""
        if self.inherited is None:
            return super().start()
        return self.inherited

    def refuses_successor(self, content: bytes) -> str | None:
        """Return why a text cannot be proposed as a successor, or None if it can."""
        return _proposal_problem(self.federation, content)


def reconfigurable(
    federation: Federation, inherited: Outcome | None = None
) -> ReconfigurableApplication:
    """Return the application of a federation that can be changed."""
    return ReconfigurableApplication(federation.task, federation, inherited)


# Cached, because a proposal is sent again and again and its file takes long to read.
@lru_cache(64)
def _proposal_problem(federation: Federation, content: bytes) -> str | None:
    """Return why a text cannot be proposed as a successor, or None if it can."""
    try:
        read_successor(federation, content)
    except NewerProtocol:
        # Servers with a newer program can read it, and may list it. Who refuses it could not vote
        # in such a round; who admits it does not propose it, and only a quorum makes it so.
        return None
    except UserError as error:
        return str(error)
    return None


def max_successor_bytes(federation: Federation) -> int:
    """Return how long the text of a federation's successor may be."""
    return min(MOST, _MAX_GROWTH * len(federation.text) + _EXTRA_BYTES)


def read_successor(federation: Federation, content: bytes) -> Federation:
    """Return the federation of this text, if it can succeed the given one."""
    max_bytes = max_successor_bytes(federation)
    if len(content) > max_bytes:
        raise UserError(
            f"the new federation.toml has {len(content)} bytes: as the present one has"
            f" {len(federation.text)}, it may have at most {max_bytes}"
        )
    try:
        new = Federation.read(content.decode(), "the new federation.toml")
    except UnicodeDecodeError as error:
        raise UserError("the new federation.toml is not UTF-8 text") from error
    if new.network is None or new.network.follows != federation.roster.run.hex():
        raise UserError(
            "the new federation.toml does not follow from the present one: make it with"
            " `fedrfq committee change`"
        )
    # Newer programs may not speak it any more, and all must agree on what can be proposed.
    if new.protocol < federation.protocol:
        raise UserError(
            f"the new federation.toml goes from version {federation.protocol} of the protocol back"
            f" to {new.protocol}: a federation stays at its version, or goes on to a newer one"
        )
    # What prototypes and public statistics mean must stay, as the next run goes on from them.
    for key in ("classes", "values", "precision", "rule", "public"):
        if getattr(new.task, key) != getattr(federation.task, key):
            raise UserError(
                f"the new federation.toml has another value for {key}: that is another"
                " experiment, so found a new federation for it"
            )
    if new.contract != federation.contract:
        raise UserError(
            "the new federation.toml has another data contract: samples would mean something else,"
            " so found a new federation for it"
        )
    return new


def inherited_by(old: Federation, outcome: Outcome, new: Federation) -> Outcome:
    """Return what the next run starts from: all that was learned, and what is known of each client.

    Clients are matched by name; the detector knows nothing of those that are new. Without a state
    (a client's history has none) only prototypes and public statistics are handed on.
    """
    inherited = outcome._replace(verdicts=b"", successor=b"")
    if not outcome.state:
        return inherited
    state = _inherited_state(old, codec.decode_state(outcome.state), new)
    return inherited._replace(state=codec.encode_state(state))


def _inherited_state(old: Federation, state: State, new: Federation) -> State:
    """Return the new run's state: fresh, but with the rows of the clients that stay.

    What the rule remembers is of classes, which stay as they are.
    """
    inherited = {name: np.array(array) for name, array in new.task.start_state().items()}
    inherited |= retaining(_inherited_statistics(old, state, new))
    # Another version of the decisions, detector or option could not make sense of the old state.
    if new.decisions != old.decisions:
        return inherited
    rule = new.task.detector.rule(new.task.rule)
    if rule == old.task.detector.rule(old.task.rule):
        inherited |= rule_part(state)
    if new.task.detector != old.task.detector:
        return inherited
    old_rows = {name: k for k, name in enumerate(_client_names(old))}
    before = []
    after = []
    for k, name in enumerate(_client_names(new)):
        if name in old_rows:
            before.append(old_rows[name])
            after.append(k)
    for key in detector_state(inherited):
        inherited[key][after] = state[key][before]
    return inherited


def _inherited_statistics(old: Federation, state: State, new: Federation) -> Retained:
    """Return the kept statistics of the clients that stay: who leaves is forgotten."""
    new_rows = {name: k for k, name in enumerate(_client_names(new))}
    names = _client_names(old)
    stay = {
        new_rows[names[k]]: content
        for k, content in retained_in(state).items()
        if k < len(names) and names[k] in new_rows
    }
    return dict(sorted(stay.items()))


def _client_names(federation: Federation) -> list[str]:
    return [federation.members[~k].name for k in range(len(federation.clients))]
