"""Mode covered: the server asks everybody, and adds up the sums of those whose coin said yes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats

from coinflower.learning import Update
from coinflower.protocol.modes import Mode

Make = Callable[..., Any]


def test_everybody_is_asked_in_every_round_and_nobody_invited(federation: Make) -> None:
    fed = federation(Mode.COVERED)
    fed.run()
    assert fed.grid.sent("invite") == []
    asked = {(event.node, event.round) for event in fed.grid.sent("gradient")}
    assert asked == {(node, round_) for node in fed.nodes for round_ in range(1, 7)}
    assert [report.participants for report in fed.reports] == [3] * 6
    assert len({report.expected_batch for report in fed.reports}) == 1


def test_the_server_adds_the_noise_of_one(federation: Make) -> None:
    """Fails falsely once in 10⁷ runs; rejects a noise that is 10 % off.

    With q = 10⁻⁹ all samples are empty, so that nothing but noise moves the model.
    """
    fed = federation(Mode.COVERED, update=Update(learning_rate=1.0), q=1e-9, sizes=(16, 16))
    models = [fed.initial()]
    fed.run(evaluate=lambda _, weights: models.append(weights))
    scale = fed.terms.p * 1e-9 * 32 / fed.terms.noise_std
    noise = -np.concatenate(np.diff(models, axis=0)).astype(np.float64) * scale
    for factor, fits in ((1.0, True), (0.9, False), (1.1, False)):
        statistic = float(np.sum((noise / factor) ** 2))
        law = stats.chi2(len(noise))
        assert (2 * min(law.cdf(statistic), law.sf(statistic)) > 1e-7) == fits
