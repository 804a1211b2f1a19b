"""Runs under a cap: what the server computes, whom it drops, and who refuses to come."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import Message

from coinflower.learning import build_model, clipped_gradient_sum, load_parameters, to_tensor
from coinflower.protocol.modes import PRIVATE_MODES, Mode
from coinflower.protocol.policy import Refusal
from tests.support.memory_grid import Deliver, Federation, Make, kind_of, reply_with

CLIP, CAP = 0.5, 1.5


def capped_descent(fed: Federation, rounds: int, total: float) -> np.ndarray:
    """Gradient descent by hand: each client's clipped sum is shortened to the cap."""
    weights = fed.initial().astype(np.float64)
    model = build_model("digits", classes=10)
    for _ in range(rounds):
        load_parameters(model, weights.astype(np.float32))
        step = np.zeros_like(weights)
        for node in fed.nodes:
            data = fed.data(node)
            targets = torch.from_numpy(data.targets)
            found = clipped_gradient_sum(model, to_tensor(data.inputs), targets, CLIP)
            added = found.numpy().astype(np.float64)
            length = float(np.sqrt((added**2).sum()))
            assert length > CAP * CLIP  # so the cap bites
            step += added * (CAP * CLIP / length)
        weights = weights - fed.update.step_size * step / total
    return weights


def test_each_clients_sum_is_capped_and_the_scale_stays(federation: Make) -> None:
    fed = federation(Mode.NONE, p=1.0, q=1.0, clip_norm=CLIP, cap=CAP, sizes=(12, 20), rounds=5)
    np.testing.assert_allclose(fed.run(), capped_descent(fed, 5, 32), atol=1e-5)


@pytest.mark.parametrize("mode", PRIVATE_MODES)
def test_honest_clients_are_never_dropped_for_the_cap(federation: Make, mode: Mode) -> None:
    fed = federation(mode, p=1.0, q=1.0, cap=1, rounds=4)
    fed.run()
    assert [(report.answered, report.dropped) for report in fed.reports] == [(3, 0)] * 4
    for node in fed.nodes:
        assert all('"cap": 1.0' in entry.terms for entry in fed.entries(node, "charge"))


@pytest.mark.parametrize("mode", [Mode.TRUSTED, Mode.COVERED, Mode.LOCAL_ONLY])
def test_a_client_that_ignores_the_cap_has_no_say(
    federation: Make, mode: Mode, caplog: pytest.LogCaptureFixture
) -> None:
    """It sends what its twelve records could add up to, were there no cap."""
    fed = federation(mode, p=1.0, q=1.0, cap=2, rounds=2)
    long = np.zeros(2410, "<f4")
    long[0] = 12.0

    def ignore(message: Message, deliver: Deliver) -> Message:
        reply = deliver()
        if kind_of(message) == "gradient" and message.metadata.dst_node_id == 1001:
            return reply_with(message, sum=long.tobytes())
        return reply

    fed.grid.interfere = ignore
    fed.run()
    first = fed.reports[0]
    assert (first.answered, first.dropped) == (2, 1)
    assert (
        "client 1001 sent: longer than its records of one round, or the cap, allow" in caplog.text
    )


@pytest.mark.parametrize("cap", [{"cap": 3.0}, {}])
def test_a_client_that_wants_a_smaller_cap_stays_out_and_the_run_goes_on(
    federation: Make, cap: dict[str, float]
) -> None:
    told: list[str] = []
    fed = federation(Mode.TRUSTED, policy={1: {"largest_cap": 2.0}}, rounds=2, **cap)
    fed.run(on_refusals=told.append)
    assert {report.available for report in fed.reports} == {2}
    assert any(Refusal.CAP.value in sentence for sentence in told)
    assert fed.entries(1001, "charge") == []
