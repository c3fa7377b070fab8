"""Public feature maps by name. A new map is a file beside these and a line here."""

from fedrfq.models.public_maps.no_map import NoMap
from fedrfq.models.public_maps.public_map import PublicMap
from fedrfq.models.public_maps.random_map import RandomMap
from fedrfq.models.public_maps.resnet18_map import ResNet18Map

PUBLIC_MAPS: dict[str, type[PublicMap]] = {
    "none": NoMap,
    "random": RandomMap,
    "resnet18": ResNet18Map,
}

__all__ = ["PUBLIC_MAPS", "NoMap", "PublicMap", "RandomMap", "ResNet18Map"]
