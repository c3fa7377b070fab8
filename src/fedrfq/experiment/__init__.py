"""An experiment: everything that decides a run, as frozen dataclasses and as one TOML file."""

from fedrfq.experiment.experiment import STARTS, Cohort, Data, Experiment
from fedrfq.experiment.kinds import name_of
from fedrfq.experiment.reading import from_table, known, load, switched

__all__ = [
    "STARTS",
    "Cohort",
    "Data",
    "Experiment",
    "from_table",
    "known",
    "load",
    "name_of",
    "switched",
]
