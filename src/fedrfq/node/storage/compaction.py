"""Keeps a party's write-ahead log short by compacting it whenever it has doubled in size."""

from __future__ import annotations

from fedrfq.consensus.compaction import compacted
from fedrfq.node.storage.audit_writer import AuditWriter
from fedrfq.node.storage.write_ahead_log import WriteAheadLog

# Bytes; a smaller log is read in a moment and not worth compacting.
MIN_BYTES = 16 << 20


class LogCompactor:
    """Decides when a log is compacted, and does it in the right order with the audit files."""

    def __init__(self, log: WriteAheadLog, audit: AuditWriter) -> None:
        self._log = log
        self._audit = audit
        self._size_before = log.size

    @property
    def due(self) -> bool:
        """Whether the log has doubled since it was last compacted."""
        # Doubling keeps the cost of all compactions proportional to the bytes ever written.
        return self._log.size > max(MIN_BYTES, 2 * self._size_before)

    def compact(self) -> None:
        """Compact the log. Call this between batches only, when nothing waits to be flushed."""
        # The audit files are rebuilt from the log after a crash, so they must be on the disk
        # before the log forgets the rounds that they describe.
        self._audit.sync()
        self._log.compact(compacted(self._log.messages))
        self._size_before = self._log.size
