"""The attacks by name. A new one is a file beside these and a line here."""

from fedrfq.attacks.adaptive import Adaptive
from fedrfq.attacks.alie import Alie
from fedrfq.attacks.attack import Attack, Scene
from fedrfq.attacks.frame import Frame
from fedrfq.attacks.inflate import Inflate
from fedrfq.attacks.ipm import Ipm
from fedrfq.attacks.label_flip import LabelFlip
from fedrfq.attacks.mimic import Mimic
from fedrfq.attacks.min_max import MinMax
from fedrfq.attacks.noise import Noise
from fedrfq.attacks.none import Peace
from fedrfq.attacks.random import Random
from fedrfq.attacks.scale import Scale
from fedrfq.attacks.sign_flip import SignFlip
from fedrfq.attacks.swap import Swap

ATTACKS: dict[str, type[Attack]] = {
    "none": Peace,
    "label-flip": LabelFlip,
    "noise": Noise,
    "sign-flip": SignFlip,
    "scale": Scale,
    "swap": Swap,
    "random": Random,
    "inflate": Inflate,
    "ipm": Ipm,
    "alie": Alie,
    "mimic": Mimic,
    "min-max": MinMax,
    "adaptive": Adaptive,
    "frame": Frame,
}

__all__ = ["ATTACKS", "Attack", "Scene"]
