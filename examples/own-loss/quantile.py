"""The time that a share of all deliveries keeps: its loss and its metrics."""

import numpy as np
import torch


class Quantile:
    """Predict a quantile; the pinball loss is least there.

    Args:
        share: Share of the records that lie below, such as 0.9.
    """

    headline = "kept"

    def __init__(self, share: float = 0.9) -> None:
        self.share = share

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return one loss per record: a delivery that is later than predicted costs more."""
        late = targets - outputs
        return torch.maximum(self.share * late, (self.share - 1) * late).mean(dim=1)

    def metrics(self, outputs: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        """Return the share of deliveries that keep the predicted time, and the mean loss."""
        late = targets - outputs
        pinball = np.maximum(self.share * late, (self.share - 1) * late)
        return {"kept": float((late <= 0).mean()), "pinball": float(pinball.mean())}
