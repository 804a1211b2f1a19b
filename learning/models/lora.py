"""Low-rank adaptation: what is learned beside frozen Linear layers (Hu et al. 2021, LoRA)."""

import copy

import torch
from torch import nn

from coinflower.accounting.errors import UserError

# Torch's own layers look at the weights of their parts, past whatever stands in their place.
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class LoraLinear(nn.Module):
    """A frozen Linear layer and, beside it, a learned one of low rank that begins at zero.

    Args:
        base: The frozen layer.
        rank: Rank of what is learned.
    """

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return what both layers say, added up."""
        added: torch.Tensor = self.base(rows) + self.up(self.down(rows))
        return added

    def merged(self) -> nn.Linear:
        """Return one Linear layer that computes the same."""
        layer = copy.deepcopy(self.base)
        with torch.no_grad():
            layer.weight += self.up.weight @ self.down.weight
        return layer


def add_lora(model: nn.Module, rank: int) -> None:
    """Put a learned layer of low rank beside every frozen Linear layer.

    Those inside of torch's own layers, such as its MultiheadAttention, stay as they are.

    Raises:
        UserError: There is no such layer, or one that is smaller than the rank.
    """
    made: dict[int, LoraLinear] = {}
    for path, parent in list(model.named_modules()):
        if type(parent).__module__.startswith("torch.nn.") and not isinstance(parent, _CONTAINERS):
            continue
        for name, child in parent._modules.items():
            if type(child) is not nn.Linear or child.weight.requires_grad:
                continue
            least = min(child.in_features, child.out_features)
            if rank > least:
                raise UserError(
                    f"lora_rank = {rank} is more than layer {f'{path}.{name}'.lstrip('.')!r} has "
                    f"(it is {child.in_features} by {child.out_features}): choose at most {least}"
                )
            if id(child) not in made:
                made[id(child)] = LoraLinear(child, rank)
            parent._modules[name] = made[id(child)]
    if not made:
        raise UserError(
            f"lora_rank = {rank} learns beside frozen Linear layers, but the model has none: name "
            "in trained_parts what else is trained, such as the last layer"
        )


def merge_lora(model: nn.Module) -> nn.Module:
    """Return a copy of the model that computes the same with the layers it had before."""
    twin = copy.deepcopy(model)
    for parent in list(twin.modules()):
        for name, child in parent._modules.items():
            if isinstance(child, LoraLinear):
                parent._modules[name] = child.merged()
    return twin
