"""A training step of a module that knows nothing of padding, of seeds or of other clients.

While the module's `forward` runs, what it calls of PyTorch passes through here:
- dropout takes its factors from the run's own counter-based randomness, so that a seed gives the
  same bytes in any stack and on any number of threads;
- BatchNorm counts real samples only, because the last batch of a client is padded, and updates its
  running moments in place;
- anything else that is random is refused, as no seed would decide it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedrfq.errors import UserError


class ModuleStep(TorchFunctionMode):
    """The rules of one training step, for the samples of one client.

    Without `keep_BU` it records which dropout the module has, in `drops`, and applies none.
    """

    def __init__(self, weight_B: Tensor, keep_BU: Tensor | None) -> None:
        super().__init__()
        self.weight_B = weight_B
        self.keep_BU = keep_BU
        self.drops: list[tuple[float, int]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Compute what the module calls, by our rule where there is one."""
        kwargs = kwargs or {}
        if func in _RULES:
            return _RULES[func](self, *args, **kwargs)
        if func in _RANDOM or (func is F.scaled_dot_product_attention and _drops(args, kwargs)):
            raise UserError(
                f"the module draws random numbers by {func.__name__}, which the run's seed does "
                "not decide: of random layers, only dropout can be used"
            )
        return func(*args, **kwargs)

    def drop_units(
        self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        """Drop single values of each sample."""
        if not training or p == 0:
            return x
        return x * self._factors(x, p, x[0].numel()).view(x.shape)

    def drop_channels(
        self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        """Drop whole channels of each sample."""
        if not training or p == 0:
            return x
        channels = x.shape[1]
        return x * self._factors(x, p, channels).view(len(x), channels, *[1] * (x.dim() - 2))

    def _factors(self, x: Tensor, p: float, units: int) -> Tensor:
        """Return the next factors, `units` for each sample."""
        if len(x) != len(self.weight_B):
            raise UserError(
                f"the module drops out values of a tensor of shape {tuple(x.shape)}: the first "
                f"dimension must be the {len(self.weight_B)} samples of a batch"
            )
        first = sum(count for _, count in self.drops)
        self.drops.append((p, units))
        if self.keep_BU is None:
            return torch.ones(len(x), units, dtype=x.dtype, device=x.device)
        return self.keep_BU[:, first : first + units].to(x.dtype)

    def batch_norm(
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        """Normalise each channel over the real samples of the batch."""
        if not training:
            return F.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
        over = [0, *range(2, x.dim())]
        shape = [1, -1, *[1] * (x.dim() - 2)]
        real = self.weight_B.to(x.dtype).view(-1, *[1] * (x.dim() - 1))
        count = real.sum() * (x[0, 0].numel())
        mean_C = (x * real).sum(over) / count
        centred = x - mean_C.view(shape)
        var_C = (centred * centred * real).sum(over) / count
        if running_mean is not None and running_var is not None:
            with torch.no_grad():
                # PyTorch normalises by the biased variance, and remembers the unbiased one.
                unbiased_C = var_C * count / (count - 1).clamp_min(1)
                running_mean.mul_(1 - momentum).add_(mean_C * momentum)
                running_var.mul_(1 - momentum).add_(unbiased_C * momentum)
        scale_C = torch.rsqrt(var_C + eps)
        if weight is not None:
            scale_C = scale_C * weight
        out = centred * scale_C.view(shape)
        if bias is None:
            return out
        return out + bias.view(shape)


_RULES: dict[Any, Callable[..., Tensor]] = {
    F.dropout: ModuleStep.drop_units,
    F.dropout1d: ModuleStep.drop_channels,
    F.dropout2d: ModuleStep.drop_channels,
    F.dropout3d: ModuleStep.drop_channels,
    F.batch_norm: ModuleStep.batch_norm,
}
_RANDOM = {
    torch.rand,
    torch.randn,
    torch.randint,
    torch.randperm,
    torch.rand_like,
    torch.randn_like,
    torch.randint_like,
    torch.bernoulli,
    torch.normal,
    torch.multinomial,
    torch.poisson,
    torch.dropout,
    torch.alpha_dropout,
    torch.feature_dropout,
    torch.feature_alpha_dropout,
    torch.rrelu,
    F.alpha_dropout,
    F.feature_alpha_dropout,
    F.gumbel_softmax,
    torch.Tensor.bernoulli,
    torch.Tensor.bernoulli_,
    torch.Tensor.normal_,
    torch.Tensor.uniform_,
    torch.Tensor.random_,
    torch.Tensor.exponential_,
    torch.Tensor.multinomial,
}


def _drops(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether attention is called with dropout."""
    dropout = kwargs.get("dropout_p", 0.0)
    if len(args) > 4:
        dropout = args[4]
    return bool(dropout)
