"""What tests build again and again: terms, policies, data, and the folder of a data owner.

Every builder has plain defaults; a test states what matters to it and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tomli_w
from flwr.app import Error, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.supercore.run import Run
from flwr.superlink.grid.http_grid import HttpGrid

from coinflower.accounting.ledger.entries import Budget
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.flower_internals.riders import Riders
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import Policy
from coinflower.protocol.terms import Terms
from tests.support.notaries import NOTARY, write_signing_key

DIGITS_SIZE = 1437


def terms_fields(mode: Mode = Mode.TRUSTED, **changes: Any) -> dict[str, Any]:
    """Return the fields of small terms that suit the mode."""
    fields: dict[str, Any] = {
        "experiment": "trial",
        "mode": mode,
        "p": mode.usual_p,
        "q": 0.5,
        "clip_norm": 1.0,
        "noise_multiplier": 1.5 if mode.is_private else 0.0,
        "rounds": 8,
        "rounds_per_invitation": 4,
        "model": "digits",
        "classes": 10,
    }
    if mode.masks_sums:
        masked = {"threshold": 2, "colluders": 1, "ring_bits": 32, "notaries": (NOTARY,)}
        fields.update(masked)
    return {**fields, **changes}


def make_terms(mode: Mode = Mode.TRUSTED, **changes: Any) -> Terms:
    """Return small terms that suit the mode."""
    return Terms(**terms_fields(mode, **changes))


def policy_fields(**changes: Any) -> dict[str, Any]:
    """Return a policy as its file has it; None takes a key out."""
    fields: dict[str, Any] = {
        "data_set": "ward 7",
        "data": "digits",
        "ledger": "ledger.db",
        "declared_size": DIGITS_SIZE,
        "modes": [str(mode) for mode in Mode],
        "largest_p": 0.5,
        "largest_q": 0.2,
        "largest_clip_norm": 1.0,
        "least_noise_multiplier": 1.0,
        "budget": {"epsilon": 3.0, "delta": 1e-3},
    }
    return {key: value for key, value in {**fields, **changes}.items() if value is not None}


def make_policy(**changes: Any) -> Policy:
    """Return a policy that lies in no file."""
    fields = policy_fields(**changes)
    converted: Mapping[str, Any] = {
        "ledger": Path(fields["ledger"]),
        "modes": frozenset(map(Mode, fields["modes"])),
        "budget": Budget(**fields["budget"]),
    }
    return Policy(**{**fields, **converted})


def policy_text(**changes: Any) -> str:
    """Return what a file with a policy says."""
    return tomli_w.dumps(policy_fields(**changes))


def write_policy(path: Path, **changes: Any) -> Path:
    """Write a policy to a file and return where it is."""
    path.write_text(policy_text(**changes))
    return path


def write_images(path: Path, size: int, *, side: int = 8, classes: int = 10, seed: int = 3) -> None:
    """Write random images, with all classes in turn, as a data set for training and testing."""
    inputs = np.random.default_rng(seed).random((size, side, side)).astype(np.float32)
    targets = np.arange(size) % classes
    np.savez(path, x_train=inputs, y_train=targets, x_test=inputs, y_test=targets)


def make_owner(
    path: Path, size: int, *, side: int = 8, classes: int = 10, seed: int = 3, **policy: Any
) -> Path:
    """Make a data owner's images, policy, key and empty ledger; names differ in their endings.

    Args:
        path: The policy's file.
        size: How many images.
        side: Of each image, in pixels.
        classes: How many classes.
        seed: Of the images.
        policy: Changes of the policy, which allows every mode unless told otherwise.
    """
    write_images(path.with_suffix(".npz"), size, side=side, classes=classes, seed=seed)
    own = {
        "data": path.with_suffix(".npz").name,
        "ledger": path.with_suffix(".db").name,
        "declared_size": size,
        "largest_p": 1.0,
        "largest_q": 1.0,
        "least_noise_multiplier": 1.5,
        "budget": {"epsilon": 40.0, "delta": 1e-5},
        "notaries": [NOTARY],
        "signing_key": path.with_suffix(".key").name,
    }
    write_signing_key(path.with_suffix(".key"))
    fields = policy_fields(**{**own, **policy})
    path.write_text(tomli_w.dumps(fields))
    Ledger.create(path.parent / fields["ledger"], fields["data_set"]).close()
    return path


def reply_of(node: int, content: RecordDict | Error) -> Message:
    """Return a reply to the question for a gradient, as the server gets it from a node."""
    metadata = Metadata(
        run_id=1,
        message_id="",
        src_node_id=node,
        dst_node_id=1,
        reply_to_message_id="m1",
        group_id="",
        created_at=time.time(),
        ttl=60,
        message_type="train.gradient",
    )
    if isinstance(content, Error):
        return make_message(metadata=metadata, error=content)
    return make_message(metadata=metadata, content=content)


class Coins:
    """Coins that fall as told, over and over."""

    insecure = True

    def __init__(self, *falls: bool) -> None:
        self._falls = falls
        self._flipped = 0

    def coin(self, p: float) -> bool:
        """Return how the next coin falls."""
        assert 0 < p <= 1
        self._flipped += 1
        return self._falls[(self._flipped - 1) % len(self._falls)]


def make_http_grid(runtime: Any) -> HttpGrid:
    """Return Flower's own Grid, which asks ``runtime`` instead of a SuperLink."""
    grid = HttpGrid("127.0.0.1:1", insecure=True, token="token")
    grid.set_run(Run.create_empty(1))
    # Its connection is made anew by our own kind; none is ever used.
    runtime._client = SimpleNamespace(timeout=None, close=lambda: None)
    grid._client = runtime
    return grid


def exchange_in_process(client: Any, path: str, request: Any, *_: Any, **__: Any) -> Any:
    """Make a call of messages to what ``make_http_grid`` was given; nothing rides along."""
    calls = {"runtime/push-messages": "PushMessages", "runtime/pull-messages": "PullMessages"}
    return getattr(client, calls[path])(request), Riders()
