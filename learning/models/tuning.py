"""What a model begins with, and which of its parts are trained."""

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning.models.frozen import freeze_all_but, load_weights, require_weights
from coinflower.learning.models.lora import add_lora


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """How a model is trained on top of public weights; by default, all of it from the beginning.

    Attributes:
        pretrained: A safetensors file of public weights that it begins with.
        trained_parts: Beginnings of the names of the parameters that are trained, up to a dot or
            whole; the others are frozen. Empty for all.
        lora_rank: Rank of what is learned beside each frozen Linear layer; 0 for nothing.
    """

    pretrained: Path | None = None
    trained_parts: tuple[str, ...] = ()
    lora_rank: int = 0

    def __post_init__(self) -> None:
        """Check the rank."""
        if self.lora_rank < 0:
            raise UserError(f"lora_rank = {self.lora_rank} must be at least 0")

    def apply(self, model: nn.Module) -> None:
        """Load the weights, freeze what is not trained, and put LoRA beside it.

        Raises:
            ValueError: Weights, parts or rank are not such that the model could have them.
        """
        loaded = None if self.pretrained is None else load_weights(model, self.pretrained)
        if self.trained_parts:
            freeze_all_but(model, self.trained_parts)
        if self.pretrained is not None and loaded is not None:
            require_weights(model, loaded, self.pretrained)
        if self.lora_rank:
            add_lora(model, self.lora_rank)


ALL_OF_IT = FineTuning()
