"""Local training: every client trains alone on its own data. Exchange must beat this baseline."""

from dataclasses import dataclass

from fedrfq.methods.method import Method


@dataclass(frozen=True)
class Local(Method):
    """Cross-entropy, no communication."""
