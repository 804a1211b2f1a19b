"""Where a model computes: the processor, or a graphics card."""

import torch

from coinflower.accounting.errors import UserError

DEVICES = ("cpu", "cuda", "mps", "auto")


def device_of(name: str) -> torch.device:
    """Return the device of a name: ``cpu``, ``cuda``, ``mps``, or ``auto`` for the best there is.

    Raises:
        UserError: It is unknown, or not on this machine.
    """
    there = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, is_there in there.items() if is_there))
    if name not in there:
        raise UserError(f"device = {name!r} is unknown; choose one of {', '.join(DEVICES)}")
    if not there[name]:
        raise UserError(
            f"device = {name!r} is not available: torch finds none on this machine; choose cpu, or "
            "auto for the best there is"
        )
    return torch.device(name)


def device_holding(model: torch.nn.Module) -> torch.device:
    """Return the device that a model's parameters are on."""
    return next(model.parameters(), torch.empty(0, device="cpu")).device
