"""What a SuperLink says when it refuses a request."""

from __future__ import annotations

import httpx
from flwr.supercore.error import ApiErrorCode, FlowerError


def refusal_in(response: httpx.Response) -> FlowerError | None:
    """Return what a response other than OK says, if Flower wrote it."""
    return FlowerError.from_json(response.text)


def is_failed_activation(refusal: FlowerError | None) -> bool:
    """Return whether a node's key is unknown or in use."""
    return refusal is not None and refusal.code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED
