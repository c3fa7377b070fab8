"""Whether this program is compiled (`FEDRFQ_COMPILE=1 pip install`) or interpreted. Both do the same."""

from __future__ import annotations

from fedrfq.consensus import replica

COMPILED = not str(replica.__file__).endswith(".py")
BUILD = "compiled" if COMPILED else "interpreted"
