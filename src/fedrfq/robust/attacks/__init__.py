"""The attacks by name. A new one is a file beside these and a line here."""

from fedrfq.robust.attacks.adaptive import Adaptive
from fedrfq.robust.attacks.alie import Alie
from fedrfq.robust.attacks.attack import Attack, Scene
from fedrfq.robust.attacks.frame import Frame
from fedrfq.robust.attacks.inflate import Inflate
from fedrfq.robust.attacks.ipm import Ipm
from fedrfq.robust.attacks.label_flip import LabelFlip
from fedrfq.robust.attacks.mimic import Mimic
from fedrfq.robust.attacks.min_max import MinMax
from fedrfq.robust.attacks.noise import Noise
from fedrfq.robust.attacks.none import Peace
from fedrfq.robust.attacks.random_values import Random
from fedrfq.robust.attacks.scale import Scale
from fedrfq.robust.attacks.sign_flip import SignFlip
from fedrfq.robust.attacks.swap import Swap

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
