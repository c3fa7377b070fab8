"""How a dataset's samples are dealt to clients. To add a kind, write a file and add a line here."""

from fedrfq.data.partition.classes import Classes
from fedrfq.data.partition.dirichlet import Dirichlet
from fedrfq.data.partition.flower import FlowerPartitioner
from fedrfq.data.partition.from_file import FromFile
from fedrfq.data.partition.groups import HELD_OUT, Groups
from fedrfq.data.partition.iid import Iid
from fedrfq.data.partition.partition import Ints, Partition

PartitionKind = Classes | Dirichlet | FlowerPartitioner | FromFile | Groups | Iid

PARTITIONS: dict[str, type[PartitionKind]] = {
    "classes": Classes,
    "dirichlet": Dirichlet,
    "flwr": FlowerPartitioner,
    "file": FromFile,
    "groups": Groups,
    "iid": Iid,
}

__all__ = [
    "HELD_OUT",
    "PARTITIONS",
    "Classes",
    "Dirichlet",
    "FlowerPartitioner",
    "FromFile",
    "Groups",
    "Iid",
    "Ints",
    "Partition",
    "PartitionKind",
]
