"""Which node hosts whom. A node says it itself, when it is greeted; one that does not answer in time is struck off, and may
come back, under another number too. Nobody is waited for who has not answered a greeting first."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedrfq.consensus.wire import Refused
from fedrfq.errors import UserError
from fedrfq.flower.messages import NodeAnswer, RoundOrder, one_line

LOG = logging.getLogger("flwr")
PAUSE_S = 0.05  # between two looks for nodes
# between two for answers: of the time so far, as each look is a request
_SHARE = 0.02
_SOONEST_S = 0.01
_LATEST_S = 0.5
_SHOWN = 8  # clients of a node, in a line of the log


class NodeRegistry:
    """Of the clients 0 to `clients` − 1. Answers are awaited for `deadline_s`."""

    def __init__(self, grid: Grid, clients: int, deadline_s: float) -> None:
        self._grid = grid
        self._clients = clients
        self._deadline_s = deadline_s
        self.hosts: dict[int, tuple[int, ...]] = {}
        self._greeted: dict[
            int, tuple[str, float]
        ] = {}  # nodes, the greeting's id, and when it is forgotten
        self._said: dict[int, str] = {}  # what was wrong with a node last

    def gather(self, hello: RoundOrder, patience_s: float) -> None:
        """Until every client is hosted; not for longer than the patience lasts (0: for ever)."""
        began = time.monotonic()
        while missing := self._missing():
            if patience_s and time.monotonic() - began > patience_s:
                raise UserError(self._too_few(missing, patience_s))
            self._greet(hello)
            time.sleep(PAUSE_S)

    def ask(self, order: RoundOrder, hello: RoundOrder) -> dict[int, NodeAnswer]:
        """What the nodes on the roll answer in time, each with the clients that it hosts there. Who does not is struck off;
        others are greeted meanwhile."""
        asked = set(self.hosts)
        answers = dict[int, NodeAnswer]()
        waiting = set(self._push(order, asked))
        began = time.monotonic()
        greeting_s = 0.0
        while True:
            for node, answer in self._pull(waiting):
                if answer is not None and answer.clients == self.hosts.get(node):
                    answers[node] = answer
            took = time.monotonic() - began
            if took >= greeting_s:
                self._greet(hello)
                greeting_s = took + PAUSE_S
            if not waiting or took > self._deadline_s:
                break
            time.sleep(min(max(_SHARE * took, _SOONEST_S), _LATEST_S))
        for node in sorted(asked - answers.keys()):
            LOG.warning(
                "node %s has no answer of use: on without its clients %s",
                node,
                _few(self.hosts.pop(node)),
            )
        return answers

    def _missing(self) -> list[int]:
        hosted = {client for clients in self.hosts.values() for client in clients}
        return [client for client in range(self._clients) if client not in hosted]

    def _greet(self, hello: RoundOrder) -> None:
        """New nodes, and those struck off; who has answered a greeting is entered."""
        now = time.monotonic()
        online = set(self._grid.get_node_ids())
        self._greeted = {
            node: (id_, until) for node, (id_, until) in self._greeted.items() if until > now
        }
        for node in sorted(online - self.hosts.keys() - self._greeted.keys()):
            for id_ in self._push(hello, [node]):
                self._greeted[node] = id_, now + self._deadline_s
        for node, answer in self._pull({id_ for id_, _ in self._greeted.values()}):
            self._greeted.pop(node, None)
            if answer is not None:
                self._enter(node, answer.clients)

    def _enter(self, node: int, clients: tuple[int, ...]) -> None:
        other = next((n for n, theirs in self.hosts.items() if set(theirs) & set(clients)), None)
        if not clients or clients[-1] >= self._clients:
            self._say(node, f"it hosts none of the clients 0 to {self._clients - 1}")
        elif other is not None:
            both = sorted(set(self.hosts[other]) & set(clients))
            self._say(node, f"it hosts client {both[0]}, as node {other} does: stop one of them")
        else:
            self.hosts[node] = clients
            self._said.pop(node, None)
            LOG.info("node %s hosts clients %s", node, _few(clients))

    def _push(self, order: RoundOrder, nodes: Iterable[int]) -> list[str]:
        content = order.record()
        messages = [
            Message(content, node, MessageType.TRAIN, ttl=self._deadline_s) for node in nodes
        ]
        return [id_ for id_ in self._grid.push_messages(messages) if id_]

    def _pull(self, waiting: set[str]) -> Iterator[tuple[int, NodeAnswer | None]]:
        """The answers that are there, no longer waited for; none where it is not one."""
        for reply in self._grid.pull_messages(set(waiting)) if waiting else ():
            waiting.discard(reply.metadata.reply_to_message_id)
            yield reply.metadata.src_node_id, self._read(reply)

    def _read(self, reply: Message) -> NodeAnswer | None:
        node = reply.metadata.src_node_id
        if reply.has_error():
            self._say(node, reply.error.reason)
            return None
        try:
            answer = NodeAnswer.read(reply.content)
        except (UserError, ValueError, Refused) as error:
            self._say(node, str(error))
            return None
        if answer.error:
            self._say(node, answer.error)
            return None
        return answer

    def _say(self, node: int, why: str | None) -> None:
        """Once, until something else is wrong."""
        line = one_line(" ".join(str(why).split()))
        if self._said.get(node) != line:
            LOG.warning("node %s: %s", node, line)
        self._said[node] = line

    def _too_few(self, missing: list[int], patience_s: float) -> str:
        found = self._clients - len(missing)
        why = next(iter(self._said.values()), "")
        line = f"{found} of {self._clients} clients are hosted after {patience_s:g} s, {_few(missing)} are not"
        if why:
            return f"{line}: a node said: {why}"
        return f"{line}: start the nodes that host them, or raise patience-s"


def _few(clients: Iterable[int]) -> str:
    """Their numbers; of many, the first and the last."""
    numbers = list(clients)
    if len(numbers) <= _SHOWN:
        return ", ".join(map(str, numbers))
    return f"{numbers[0]} … {numbers[-1]} ({len(numbers)})"
