"""Checks a run's decisions with the public keys alone, and points at the first byte that does not hold.

Of every round: that the log's entry follows from the one before; that a quorum signed the record, and the record names the
value before it; that the set of uploads is the union of n − f signed lists; that evidence proves itself. With the bodies,
too: that clients signed the uploads, and that detection and aggregation make of them what was certified. Of the logs of
several parties: that they never differ. Needs no PyTorch.
"""

from fedrfq.audit.agreement import Fork, fork
from fedrfq.audit.audit import Audit, Failed
from fedrfq.audit.log import Audited, Charge

__all__ = ["Audit", "Audited", "Charge", "Failed", "Fork", "fork"]
