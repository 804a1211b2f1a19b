"""What the tests of a participant, and of the handlers that call it, share."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, Metadata, RecordDict
from flwr.app.message import make_message
from torch import nn

from coinflower.accounting.ledger.echo import NO_TOKEN, TOKEN_BYTES
from coinflower.client.app import ConfiguredOwners, make_app
from coinflower.client.data import load_local_data
from coinflower.client.participant import Participant
from coinflower.learning import (
    Clipping,
    SecureRandom,
    build_model,
    clipped_gradient_sum,
    load_parameters,
    to_tensor,
)
from coinflower.masking.vouchers import write_voucher
from coinflower.protocol import messages
from coinflower.protocol.messages import FAILURE_REASON, vector_from_bytes
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import Refusal, RefusedError, load_policy
from coinflower.protocol.terms import Terms
from tests.support.notaries import KEY

Make = Callable[..., Terms]

LENGTH = 64 * 32 + 32 + 32 * 10 + 10
SPEAKING = [Mode.TRUSTED, Mode.QUIET]
KINDS = ("query.enrol", "query.invite", "train.gradient")


class Recorder:
    """Secure randomness that remembers what it was asked for."""

    insecure = False

    def __init__(self) -> None:
        self._source = SecureRandom()
        self.calls: list[tuple[str, float, float]] = []
        self.batches: list[int] = []

    def coin(self, p: float) -> bool:
        return self._source.coin(p)

    def sample_indices(self, n: int, q: float) -> npt.NDArray[np.int64]:
        self.calls.append(("sample", n, q))
        rows = self._source.sample_indices(n, q)
        self.batches.append(len(rows))
        return rows

    def normal(self, size: int, std: float) -> npt.NDArray[np.float64]:
        self.calls.append(("noise", size, std))
        return self._source.normal(size, std)


def five_classes(classes: int) -> nn.Module:
    """A model of an owner's own that takes no notice of how many classes it is asked for."""
    del classes
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5))


def fail_on(samples: Sequence[npt.NDArray[Any]]) -> Callable[..., torch.Tensor]:
    """A gradient that fails whenever one of the samples is in the batch."""
    peculiar = to_tensor(np.stack(samples))

    def gradient(
        model: nn.Module,
        inputs: tuple[torch.Tensor],
        targets: torch.Tensor,
        clip_norm: float,
        **more: Any,
    ) -> torch.Tensor:
        if any(torch.equal(one, other) for one in inputs[0] for other in peculiar):
            raise RuntimeError("patient 17 is peculiar")
        return clipped_gradient_sum(model, inputs, targets, clip_norm, **more)

    return gradient


def enrolled(participant: Participant, terms: Terms) -> Participant:
    participant.enrol(terms)
    return participant


def masked(make_terms: Make, **changes: Any) -> Terms:
    return make_terms(Mode.MASKED, **{"threshold": 5, "colluders": 1, **changes})


def vouched(participant: Participant, terms: Terms, token: bytes = NO_TOKEN) -> bytes:
    return write_voucher(participant.request(terms), terms.hash, token, KEY)


def answer(participant: Participant, terms: Terms, round_: int, weights: bytes) -> object:
    """Return what a client sends in a round, in any mode."""
    if not terms.mode.masks_sums:
        return participant.gradient_sum(terms, round_, weights)
    return participant.masked_sum(terms, round_, weights, vouched(participant, terms))


def refused(action: Callable[[], object]) -> Refusal:
    with pytest.raises(RefusedError) as caught:
        action()
    return caught.value.refusal


def exact_sum(
    owner: Any,
    weights: bytes,
    clip_norm: float = 1.0,
    *,
    without: Sequence[int] = (),
    clipping: Clipping = "flat",
) -> npt.NDArray[np.float32]:
    data = load_local_data(load_policy(owner.policy))
    kept = np.setdiff1d(np.arange(len(data)), without)
    model = build_model("digits", classes=10)
    load_parameters(model, vector_from_bytes(weights, LENGTH))
    targets = torch.from_numpy(data.targets[kept])
    inputs = to_tensor(data.inputs[kept])
    total = clipped_gradient_sum(model, inputs, targets, clip_norm, clipping=clipping)
    result: npt.NDArray[np.float32] = total.numpy()
    return result


def variance_p_value(values: npt.NDArray[np.float32], std: float) -> float:
    from scipy import stats

    statistic = float((values.astype(np.float64) ** 2).sum() / std**2)
    law = stats.chi2(len(values))
    return float(2 * min(law.cdf(statistic), law.sf(statistic)))


owners = ConfiguredOwners()
app = make_app(owners)


def ask(kind: str, content: RecordDict) -> Message:
    metadata = Metadata(
        run_id=1,
        message_id="m1",
        src_node_id=1,
        dst_node_id=7,
        reply_to_message_id="",
        group_id="",
        created_at=time.time(),
        ttl=60,
        message_type=kind,
    )
    return make_message(metadata=metadata, content=RecordDict({**content}))


def question(terms: Terms | str, **fields: Any) -> RecordDict:
    text = terms if isinstance(terms, str) else terms.to_json()
    return RecordDict({messages.ASK: ConfigRecord({messages.TERMS: text, **fields})})


def context_of(owner: Any, **run_config: Any) -> Context:
    return Context(
        run_id=1,
        node_id=7,
        node_config={"policy": str(owner.policy)},
        state=RecordDict(),
        run_config=run_config,
    )


def call(owner: Any, kind: str, content: RecordDict) -> Message:
    return app(ask(kind, content), context_of(owner))


def answer_of(reply: Message) -> dict[str, Any]:
    """The one record of a reply but salt and echo, after checking that they are there."""
    assert not reply.has_error()
    assert list(reply.content) == [messages.ANSWER]
    assert not reply.content.metric_records
    assert not reply.content.array_records
    answer: dict[str, Any] = dict(reply.content.config_records[messages.ANSWER])
    assert len(answer.pop(messages.SALT)) >= messages.SALT_BYTES
    assert len(answer.pop(messages.ECHO)) == TOKEN_BYTES
    return answer


def fails(owner: Any, kind: str, content: RecordDict) -> None:
    """Checks that the message fails and that nobody learns why."""
    with pytest.raises(RuntimeError) as caught:
        call(owner, kind, content)
    error = caught.value
    assert type(error) is RuntimeError
    assert error.args == (FAILURE_REASON,)
    assert error.__cause__ is None
    assert error.__context__ is None
    assert "During handling" not in "".join(traceback.format_exception(error))
