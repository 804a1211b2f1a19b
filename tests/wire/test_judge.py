"""The classifier that is to find leaks: it finds small ones, and none where there is none."""

import numpy as np

from tests.wire.judge import judge
from tests.wire.views import View


def view_of(effect):
    """Return 400 coins beside eight numbers, one of which is a little larger for heads."""
    random = np.random.default_rng(7)
    coins = random.random(400) < 0.5
    rows = random.normal(size=(400, 8))
    rows[:, 3] += effect * coins
    return View(rows=rows, rounds=np.repeat(np.arange(100), 4), coins=coins)


def test_a_difference_of_one_standard_deviation_is_found():
    found = judge(view_of(1.0))
    assert found.leaks
    assert found.low > 0.5


def test_where_nothing_differs_nothing_is_found():
    found = judge(view_of(0.0))
    assert not found.leaks
    assert found.low < 0.5 < found.high


def test_a_column_that_tells_everything_is_ranked_perfectly():
    found = judge(view_of(100.0))
    assert found.auc == 1.0
    assert found.tried == 200
