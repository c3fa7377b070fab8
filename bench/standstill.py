"""Notices when no round ends for a long time, and keeps what everybody says then."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fedrfq.node.ops.child_processes import Child
from fedrfq.node.ops.local_cluster import Cluster

# Longer than any round of a campaign takes, even on a busy machine.
STANDSTILL_S = 60.0
# The last lines of a process that are kept.
_LINES = 40


class Watch:
    """Watches `last_round`, the last round that anybody has seen decided.

    What servers and clients say at a standstill is kept in files beside `record`.
    """

    def __init__(
        self,
        cluster: Cluster,
        clients: Sequence[Child],
        last_round: Callable[[], int],
        record: Path,
    ) -> None:
        self._cluster = cluster
        self._children = [*cluster.children.values(), *clients]
        self._last_round = last_round
        self._record = record
        self._round = -1
        self._since = 0.0
        self._kept = 0

    def still_s(self) -> float:
        """Return for how long no round has ended."""
        round_ = self._last_round()
        if round_ != self._round:
            self._round = round_
            self._since = time.monotonic()
        return time.monotonic() - self._since

    def keep(self) -> Path:
        """Write down what all servers report, and the last lines of all processes."""
        self._kept += 1
        path = self._record.with_name(f"{self._record.stem}-standstill-{self._kept}.json")
        servers = [party for party in self._cluster.children if party >= 0]
        found = {
            "round": self._round,
            "still_s": round(self.still_s()),
            "servers": {server: self._cluster.status(server) for server in servers},
            "said": {child.name: _last_lines(child) for child in self._children},
        }
        path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        return path


def _last_lines(child: Child) -> list[str]:
    if not child.output.exists():
        return []
    return child.output.read_text(encoding="utf-8", errors="replace").splitlines()[-_LINES:]
