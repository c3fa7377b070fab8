"""What the program knows about a dataset before it has the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedrfq.data.content import Content
from fedrfq.data.origins import Origin


@dataclass(frozen=True)
class Source:
    """A dataset's defaults, where to get it, and the hash of its content.

    With `sha256` None, the hash is the one noted when the data were fetched.
    """

    name: str
    description: str
    classes: tuple[str, ...]
    images: int
    shots: int
    test_shots: int
    model: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    places: tuple[Origin[Content], ...]
    from_file: Callable[[Path], Content]
    from_what: str  # what `--from` takes, in words
    sha256: str | None
    augment: bool = False  # random crop (padding 4) and flip in training
    # More defaults for experiments on this data, by section.
    protocol: Mapping[str, Any] = field(default_factory=dict)
    built_in: bool = False  # needs no network, so it is created on first use

    @property
    def settings(self) -> dict[str, Any]:
        """The defaults of an experiment on this data, as a table of settings."""
        shots = {"shots": self.shots, "test_shots": self.test_shots}
        protocol = dict(self.protocol)
        return {
            **protocol,
            "data": {"augment": self.augment},
            "model": {"name": self.model, **protocol.get("model", {})},
            "partition": {**shots, **protocol.get("partition", {})},
        }
