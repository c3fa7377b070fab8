"""The methods by name. A new method is a file beside these and a line here."""

from fedrfq.methods.codes import Codes
from fedrfq.methods.fedavg import FedAvg
from fedrfq.methods.fedorgp import FedORGP
from fedrfq.methods.fedper import FedPer
from fedrfq.methods.fedproto import FedProto
from fedrfq.methods.fedprox import FedProx
from fedrfq.methods.fedrep import FedRep
from fedrfq.methods.fedrfq import FedRFQ
from fedrfq.methods.fedrfq_coded import FedRFQCoded
from fedrfq.methods.fedrfq_lean import FedRFQLean
from fedrfq.methods.fedsa import FedSA
from fedrfq.methods.fedtgp import FedTGP
from fedrfq.methods.fesem import FeSEM
from fedrfq.methods.local import Local
from fedrfq.methods.method import Method
from fedrfq.methods.own_means import OwnMeans
from fedrfq.methods.protonorm import ProtoNorm

METHODS: dict[str, type[Method]] = {
    "local": Local,
    "self": OwnMeans,
    "codes": Codes,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedper": FedPer,
    "fedrep": FedRep,
    "fesem": FeSEM,
    "fedproto": FedProto,
    "fedtgp": FedTGP,
    "protonorm": ProtoNorm,
    "fedorgp": FedORGP,
    "fedsa": FedSA,
    "fedrfq": FedRFQ,
    "fedrfq-lean": FedRFQLean,
    "fedrfq-coded": FedRFQCoded,
}

__all__ = ["METHODS", "Method"]
