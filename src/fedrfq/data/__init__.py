"""Datasets by name or path: `load` one, `get` it into the cache, ask for `info`."""

from fedrfq.data.catalogue import DATASETS
from fedrfq.data.dataset import Dataset, is_given
from fedrfq.data.library import at_path, get, info, load
from fedrfq.data.source import Source

__all__ = ["DATASETS", "Dataset", "Source", "at_path", "get", "info", "is_given", "load"]
