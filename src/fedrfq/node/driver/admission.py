"""Decides which frames of peers become events for the machine.

What is refused here costs neither a signature's check nor a place in the machine's memory.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Container

from fedrfq.consensus.events import Received
from fedrfq.consensus.messages import (
    AnyMessage,
    ChangeProposal,
    Evidence,
    Fetch,
    Upload,
    decode,
    run_of,
)
from fedrfq.consensus.roster import Roster
from fedrfq.consensus.sizes import sizes_of
from fedrfq.consensus.wire import Sizes
from fedrfq.node.transport.budget import Allowance

MAX_ROUNDS = 2**32 - 1
# Change proposals accepted from one server: at once, and per second.
CHANGE_PROPOSALS = 16
CHANGE_PROPOSALS_S = 4


class Admission:
    """Takes in peers' frames. It is created in a running event loop.

    `counts` is the driver's, and `couriers` are peers that carry clients' uploads and ask
    questions: anything else from them is ignored. `sizes` are those of honest messages; what is
    larger is refused before it is decoded.
    """

    def __init__(
        self,
        roster: Roster,
        counts: Counter[str],
        couriers: Container[int] = (),
        sizes: Sizes | None = None,
    ) -> None:
        self._run = roster.run
        self._counts = counts
        self._couriers = couriers
        self._sizes = sizes or sizes_of(roster)
        self._loop = asyncio.get_running_loop()
        self._change_proposals: dict[int, Allowance] = {}
        # Uploads of later rounds are refused.
        self.last_round = MAX_ROUNDS
        # The highest round that each server has mentioned.
        self.heard: dict[int, int] = {}
        # Peers that have sent a message of this run, and those whose other run was reported.
        self._here: set[int] = set()
        self._elsewhere: set[int] = set()
        # Takes a frame of another run than the machine's, and tells whether it is one.
        self.take_elsewhere: Callable[[int, bytes], bool] = lambda peer, data: False
        # Called once for each peer that has only ever sent messages of another run.
        self.on_another_run: Callable[[int, bytes], None] = lambda peer, run: None

    def event(self, peer: int, data: bytes) -> Received | None:
        """Return a peer's frame as an event for the machine, if it is one.

        Raises Refused for what no honest party would send as a message.
        """
        # Another run may have more parties, and so larger messages.
        run = run_of(data)
        if run is not None and run != self._run:
            if not self.take_elsewhere(peer, data):
                self._note_another(peer, run)
            return None
        message = decode(data, self._sizes)
        body = message.body
        if peer in self._couriers and type(body) not in _FROM_COURIERS:
            self._counts["not for a courier to say"] += 1
            return None
        if type(body) in _TO_ADMIT and not self._admits(peer, body):
            return None
        self._here.add(peer)
        # In a question for evidence the number is not a round, but too small to matter.
        if peer >= 0 and body.round > self.heard.get(peer, 0):
            self.heard[peer] = body.round
        return Received(peer, message)

    def _note_another(self, peer: int, run: bytes) -> None:
        self._counts["messages of another run"] += 1
        # Around a change of the federation, messages of the run before or after are to be expected.
        if peer not in self._here and peer not in self._elsewhere:
            self._elsewhere.add(peer)
            self.on_another_run(peer, run)

    def _admits(self, peer: int, body: AnyMessage) -> bool:
        """Refuse uploads after the last round, and change proposals that come too often."""
        if type(body) in _INPUTS and body.round > self.last_round:
            self._counts["uploads after the last round"] += 1
            return False
        if not _has_change_proposal(body):
            return True
        # Clients have nothing to propose, nor to hand on.
        if peer < 0:
            return False
        # Each proposal is the text of a whole federation, which is expensive to parse.
        now = self._loop.time()
        allowance = self._change_proposals.setdefault(
            peer, Allowance(CHANGE_PROPOSALS, CHANGE_PROPOSALS_S, now)
        )
        if not allowance.take(now):
            self._counts["change proposals too often"] += 1
            return False
        return True


def _has_change_proposal(body: AnyMessage) -> bool:
    """Tell whether checking a message means parsing the text of a federation."""
    if isinstance(body, Evidence):
        body = body.first.body
    return isinstance(body, ChangeProposal)


_INPUTS = frozenset((Upload, ChangeProposal))
# What may be refused although it is well-formed (see `_admits`).
_TO_ADMIT = _INPUTS | {Evidence}
_FROM_COURIERS = frozenset((Upload, Fetch))
