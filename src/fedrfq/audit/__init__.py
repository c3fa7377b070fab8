"""Check a run's decisions with the public keys alone, and find the first byte that does not hold.

For every round, an audit checks that the log's entry follows from the one before; that a quorum
signed the record, and that the record names the value before it; that the set of uploads is the
union of n − f signed lists; and that evidence proves itself. With the bodies it also checks that
clients signed the uploads, and that detection and aggregation lead from them to what was
certified. The logs of several parties are compared: they must never differ. The package needs no
PyTorch.
"""

from fedrfq.audit.agreement import Fork, find_fork
from fedrfq.audit.audit import Audit, AuditFailed
from fedrfq.audit.completeness import Gaps, charged_in, find_gaps
from fedrfq.audit.log import AuditedRound, Charge

__all__ = [
    "Audit",
    "AuditFailed",
    "AuditedRound",
    "Charge",
    "Fork",
    "Gaps",
    "charged_in",
    "find_fork",
    "find_gaps",
]
