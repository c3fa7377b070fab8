"""The error that an invariant raises when it does not hold."""

from __future__ import annotations


class Violation(Exception):
    """An invariant does not hold: its name, and what was observed."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name
        self.detail = detail

    def __reduce__(self) -> tuple[type[Violation], tuple[str, str]]:
        # Exceptions are pickled by `args`, which here is the joined text: workers would fail.
        return Violation, (self.name, self.detail)
