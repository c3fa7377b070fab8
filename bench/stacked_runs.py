"""Training of runs that share one program, for searches over many settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedrfq import data
from fedrfq.experiment import Experiment
from fedrfq.learning.evaluation import RoundOutcome
from fedrfq.learning.round_loop import Diverged, RoundLoop
from fedrfq.runs.session import join, part, pick_device


def train_together(
    experiments: Sequence[Experiment], device: str, on_round: Callable[[], object]
) -> dict[int, RoundOutcome]:
    """Train runs of one program; return the last outcomes of those that do not diverge."""
    dataset = data.load(experiments[0].data.name)
    loop = RoundLoop(experiments, dataset, pick_device(device))
    state = loop.start()
    places = list(range(len(experiments)))
    outcomes: list[RoundOutcome] = []
    while state.round < loop.experiments[0].rounds:
        try:
            state, outcomes = loop.advance(state)
            on_round()
        except Diverged as error:
            # The round is repeated without the runs that diverged.
            left = [r for r in range(len(places)) if r not in error.runs]
            if not left:
                return {}
            state = join([part(loop, state, r) for r in left])
            places = [places[r] for r in left]
            loop = RoundLoop([experiments[place] for place in places], dataset, loop.device)
    return dict(zip(places, outcomes, strict=True))
