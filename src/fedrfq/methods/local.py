"""Local: every client trains alone on its own data. The baseline that no exchange must beat."""

from dataclasses import dataclass

from fedrfq.methods.method import Method


@dataclass(frozen=True)
class Local(Method):
    """Cross-entropy, no communication."""
