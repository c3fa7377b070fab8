"""What a client answers with the help of the public map: also classes that it has never seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedrfq.errors import UserError
from fedrfq.learning.public.classifier import PublicClassifier
from fedrfq.learning.public.classifier_file import CLASSIFIERS, load_classifier
from fedrfq.learning.public.combination import OWN, PUBLIC, UNKNOWN, answers, combined
from fedrfq.models.public_maps import PublicMap


@dataclass(frozen=True)
class PublicAnswers:
    """A client's classifier on the public map, and the classes it holds itself."""

    map_: PublicMap
    classifier: PublicClassifier
    held_J: Tensor

    @staticmethod
    def load(folder: Path, client: int, map_: PublicMap, classes: int) -> PublicAnswers | None:
        """Return what a folder has of a client; None without a map, or if it is not taught yet."""
        if not map_.used:
            return None
        found = load_classifier(folder, client)
        if found is None:
            return None
        made, held_J = found
        if made.weight_VJ.shape != (map_.values(), classes):
            raise UserError(
                f"{folder / CLASSIFIERS} does not belong to the experiment's public map:"
                " restore it, or remove it"
            )
        return PublicAnswers(map_, made, held_J)

    def answers(
        self,
        pixels_NCHW: Tensor,
        logits_NJ: Tensor,
        names: Sequence[str],
        threshold: float | None = None,
    ) -> list[dict[str, object]]:
        """Return the client's final answer for each image, given its own head's logits.

        `class` is None where the most likely class is less likely than the threshold, which is the
        experiment's by default. `spoke` says who decided: for a class that the client holds its own
        model (together with the public map), for another one the map alone. `seen` says whether
        the client has samples of the most likely class.
        """
        if threshold is None:
            threshold = self.map_.threshold
        z_NV = self.map_.scaled(self.map_.raw(pixels_NCHW))
        chance_NJ = combined(logits_NJ, self.classifier.log_probabilities(z_NV), self.held_J)
        best_N, guess_N = chance_NJ.max(-1)
        known_N = answers(chance_NJ, threshold) != UNKNOWN
        found: list[dict[str, object]] = []
        for best, guess, known in zip(best_N, guess_N.tolist(), known_N.tolist(), strict=True):
            class_ = None
            if known:
                class_ = names[guess]
            spoke = PUBLIC
            seen = bool(self.held_J[guess])
            if seen:
                spoke = OWN
            found.append(
                {
                    "class": class_,
                    "probability": round(float(torch.exp(best)), 4),
                    "most_likely": names[guess],
                    "spoke": spoke,
                    "seen": seen,
                }
            )
        return found
