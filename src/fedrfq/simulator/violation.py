"""What an invariant says when it does not hold."""

from __future__ import annotations


class Violation(Exception):
    """The invariant's name, and what was seen."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name
        self.detail = detail

    def __reduce__(self) -> tuple[type[Violation], tuple[str, str]]:
        return Violation, (self.name, self.detail)
