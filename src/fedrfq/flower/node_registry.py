"""Keeps track of which node hosts which clients.

A node says so itself, when it is greeted. One that does not answer in time is removed; it may come
back later, under another node id too. No order waits for a node that has not answered a greeting.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedrfq.consensus.wire import Refused
from fedrfq.errors import UserError
from fedrfq.flower.messages import NodeAnswer, RoundOrder, one_line
from fedrfq.flower.packed_result import public_in, without_public

LOG = logging.getLogger("flwr")
# Seconds between two looks for new nodes.
PAUSE_S = 0.05
# Each look for answers is a request. So the pause before the next one is a share of the time that
# the node has taken so far: an answer is found at most 2 % late, within these bounds.
_PAUSE_SHARE = 0.02
_MIN_PAUSE_S = 0.01
_MAX_PAUSE_S = 0.5
# Clients of a node that a line of the log lists.
_MAX_LISTED = 8


class NodeRegistry:
    """The nodes that host the clients 0 to `clients` − 1; answers are awaited for `deadline_s`."""

    def __init__(self, grid: Grid, clients: int, deadline_s: float) -> None:
        self._grid = grid
        self._clients = clients
        self._deadline_s = deadline_s
        self.hosts: dict[int, tuple[int, ...]] = {}
        # For each greeted node, the greeting's message id and the time at which it is given up.
        self._greeted: dict[int, tuple[str, float]] = {}
        # For each node, the public part of the result that it has answered to.
        self._public: dict[int, bytes] = {}
        # For each node, the problem that was logged last.
        self._problems: dict[int, str] = {}

    def gather(self, hello: RoundOrder, patience_s: float) -> None:
        """Greet nodes until every client is hosted.

        Raise a UserError if that takes longer than `patience_s`; 0 stands for ever.
        """
        began = time.monotonic()
        while missing := self._missing():
            if patience_s and time.monotonic() - began > patience_s:
                raise UserError(self._too_few(missing, patience_s))
            self._greet(hello)
            time.sleep(PAUSE_S)

    def ask(self, order: RoundOrder, hello: RoundOrder) -> dict[int, NodeAnswer]:
        """Send the order to all registered nodes, and return the answers that come in time.

        A node whose answer is missing, invalid, or for other clients is removed. Other nodes are
        greeted in the meantime.
        """
        asked = set(self.hosts)
        answers = dict[int, NodeAnswer]()
        # Once for all nodes, because it may be long.
        public = public_in(order.last)
        waiting = set(self._send(order, asked))
        began = time.monotonic()
        next_greeting_s = 0.0
        while True:
            for node, answer in self._pull(waiting):
                # A node that speaks for other clients than it said may be after their uploads.
                if answer is not None and answer.clients == self.hosts.get(node):
                    answers[node] = answer
                    # By now the node has it on its disk.
                    self._public[node] = public
            elapsed_s = time.monotonic() - began
            if elapsed_s >= next_greeting_s:
                self._greet(hello)
                next_greeting_s = elapsed_s + PAUSE_S
            if not waiting or elapsed_s > self._deadline_s:
                break
            time.sleep(min(max(_PAUSE_SHARE * elapsed_s, _MIN_PAUSE_S), _MAX_PAUSE_S))
        for node in sorted(asked - answers.keys()):
            clients = _listed(self.hosts.pop(node))
            # It may have lost its state.
            self._public.pop(node, None)
            LOG.warning(
                "node %s gave no valid answer: continuing without clients %s", node, clients
            )
        return answers

    def _missing(self) -> list[int]:
        hosted = {client for clients in self.hosts.values() for client in clients}
        return [client for client in range(self._clients) if client not in hosted]

    def _greet(self, hello: RoundOrder) -> None:
        """Greet nodes that are not registered, and register those that have answered."""
        now = time.monotonic()
        online = set(self._grid.get_node_ids())
        # A greeting that was not answered in time is repeated.
        for node, (_, end) in list(self._greeted.items()):
            if end <= now:
                del self._greeted[node]
        for node in sorted(online - self.hosts.keys() - self._greeted.keys()):
            for message_id in self._push(hello, [node]):
                self._greeted[node] = message_id, now + self._deadline_s
        waiting = {message_id for message_id, _ in self._greeted.values()}
        for node, answer in self._pull(waiting):
            self._greeted.pop(node, None)
            if answer is not None:
                self._register(node, answer.clients)

    def _register(self, node: int, clients: tuple[int, ...]) -> None:
        if not clients or clients[-1] >= self._clients:
            self._report(node, f"it hosts none of the clients 0 to {self._clients - 1}")
            return
        for other, theirs in self.hosts.items():
            if both := set(theirs) & set(clients):
                # One client must not sign at two places.
                self._report(
                    node, f"it hosts client {min(both)}, as node {other} does: stop one of them"
                )
                return
        self.hosts[node] = clients
        self._problems.pop(node, None)
        LOG.info("node %s hosts clients %s", node, _listed(clients))

    def _send(self, order: RoundOrder, nodes: Collection[int]) -> list[str]:
        """Send the order with its result, and return the ids of the messages.

        Nodes that have the public part already do not get it again.
        """
        public = public_in(order.last)
        informed = [node for node in nodes if self._public.get(node) == public]
        others = [node for node in nodes if node not in informed]
        short = replace(order, last=without_public(order.last))
        return self._push(short, informed) + self._push(order, others)

    def _push(self, order: RoundOrder, nodes: Collection[int]) -> list[str]:
        """Send the order, and return the ids of the messages."""
        # Even no message would be a request.
        if not nodes:
            return []
        content = order.record()
        messages = [
            Message(content, node, MessageType.TRAIN, ttl=self._deadline_s) for node in nodes
        ]
        return [message_id for message_id in self._grid.push_messages(messages) if message_id]

    def _pull(self, waiting: set[str]) -> Iterator[tuple[int, NodeAnswer | None]]:
        """Yield the nodes that have replied, and their answers; None stands for an invalid one.

        Messages that have a reply are removed from `waiting`.
        """
        if not waiting:
            return
        for reply in self._grid.pull_messages(set(waiting)):
            waiting.discard(reply.metadata.reply_to_message_id)
            yield reply.metadata.src_node_id, self._read(reply)

    def _read(self, reply: Message) -> NodeAnswer | None:
        node = reply.metadata.src_node_id
        if reply.has_error():
            self._report(node, reply.error.reason)
            return None
        try:
            answer = NodeAnswer.read(reply.content)
        except (UserError, ValueError, Refused) as error:
            self._report(node, str(error))
            return None
        if answer.error:
            self._report(node, answer.error)
            return None
        return answer

    def _report(self, node: int, problem: str | None) -> None:
        """Log a node's problem, once until it has another."""
        line = one_line(" ".join(str(problem).split()))
        if self._problems.get(node) != line:
            LOG.warning("node %s: %s", node, line)
        self._problems[node] = line

    def _too_few(self, missing: list[int], patience_s: float) -> str:
        hosted = self._clients - len(missing)
        line = (
            f"{hosted} of {self._clients} clients are hosted after {patience_s:g} s, "
            f"{_listed(missing)} are not"
        )
        for problem in self._problems.values():
            return f"{line}: a node said: {problem}"
        return f"{line}: start the nodes that host them, or raise patience-s"


def _listed(clients: Iterable[int]) -> str:
    """Return the clients' numbers; of many, the first and the last."""
    numbers = list(clients)
    if len(numbers) <= _MAX_LISTED:
        return ", ".join(map(str, numbers))
    return f"{numbers[0]} … {numbers[-1]} ({len(numbers)})"
