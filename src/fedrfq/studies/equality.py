"""Equal experiments: those that give the same runs, whatever they are called."""

from __future__ import annotations

from dataclasses import replace

from fedrfq.data.partition import Classes
from fedrfq.experiment import Experiment


def run_key(experiment: Experiment) -> str:
    """Return what all experiments with the same runs share, and no others.

    With 3 ± 3 classes a client holds 2 to 6, and so it does with 4 ± 2.
    """
    if isinstance(experiment.partition, Classes):
        experiment = replace(experiment, partition=experiment.partition.simplest())
    return experiment.hash()


def rerun_key(experiment: Experiment) -> str:
    """Return what runs of one experiment share, under whatever names they were run.

    How often a run writes checkpoints changes nothing in it either.
    """
    return run_key(replace(experiment, name="any", checkpoint=1))
