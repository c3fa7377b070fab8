"""Keeping a party's log short: once it has doubled, all of it goes but its essence."""

from __future__ import annotations

from fedrfq.consensus.compaction import compacted
from fedrfq.node.storage.audit_writer import AuditWriter
from fedrfq.node.storage.write_ahead_log import WriteAheadLog

LEAST = 16 << 20  # bytes: a log smaller than this is left as it is


class LogCompactor:
    def __init__(self, store: WriteAheadLog, chronicle: AuditWriter) -> None:
        self._store = store
        self._chronicle = chronicle
        self._size = store.size

    @property
    def due(self) -> bool:
        return self._store.size > max(LEAST, 2 * self._size)

    def compact(self) -> None:
        """What was decided is on the disk elsewhere before the log forgets how; between batches only."""
        self._chronicle.sync()
        self._store.compact(compacted(self._store.messages))
        self._size = self._store.size
