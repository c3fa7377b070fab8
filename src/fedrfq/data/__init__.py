"""Datasets by name or path: `load` one, `get` it into the cache, ask for `info`."""

from fedrfq.data.catalogue import DATASETS
from fedrfq.data.contract import CONTRACT, Contract
from fedrfq.data.dataset import Dataset, is_given, is_on_hub
from fedrfq.data.image_form import ImageForm
from fedrfq.data.library import at_path, get, info, load, load_agreed, survey
from fedrfq.data.source import Source

__all__ = [
    "CONTRACT",
    "DATASETS",
    "Contract",
    "Dataset",
    "ImageForm",
    "Source",
    "at_path",
    "get",
    "info",
    "is_given",
    "is_on_hub",
    "load",
    "load_agreed",
    "survey",
]
