"""An experiment: everything that decides a run, as frozen dataclasses and as one TOML file."""

from fedrfq.experiment.experiment import STARTS, Cohort, Data, Experiment
from fedrfq.experiment.kinds import name_of
from fedrfq.experiment.reading import check_keys, from_table, load, without_replaced_kinds

__all__ = [
    "STARTS",
    "Cohort",
    "Data",
    "Experiment",
    "check_keys",
    "from_table",
    "load",
    "name_of",
    "without_replaced_kinds",
]
