"""TensorBoard: event files beside the journal."""

from __future__ import annotations

import json
from collections.abc import Mapping

from torch.utils.tensorboard import SummaryWriter

from coinflower.server.settings import Settings

FOLDER = "tensorboard"


class TensorBoardTracker:
    """Writes event files into the server's state folder.

    Args:
        settings: Settings of the run.
    """

    def __init__(self, settings: Settings) -> None:
        self._writer = SummaryWriter(str(settings.state / FOLDER))
        terms = json.dumps(settings.terms.to_fields(), indent=1)
        self._writer.add_text("terms", f"```\n{terms}\n```")

    def write(self, round_: int, figures: Mapping[str, float]) -> None:
        """Show the figures of a round."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, round_)
        self._writer.flush()

    def close(self, state: str) -> None:
        """End the files."""
        del state
        self._writer.close()
