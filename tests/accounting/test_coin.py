"""The ledger's own coin: fair to its p, and unlike any other."""

from __future__ import annotations

import pytest
from scipy import stats

from coinflower.accounting.coin import SecureCoin

FALSE_ALARM = 1e-6
FLIPS = 40_000


def fits(heads: int, flips: int, p: float) -> bool:
    """Exact binomial test; rejects the true p with probability FALSE_ALARM."""
    return bool(stats.binomtest(heads, flips, p).pvalue >= FALSE_ALARM)


@pytest.mark.parametrize("p", [0.2, 0.5, 0.9])
def test_heads_come_as_often_as_they_should_and_a_tenth_off_would_show(p: float) -> None:
    heads = sum(SecureCoin().coin(p) for _ in range(FLIPS))
    assert fits(heads, FLIPS, p)
    assert not fits(heads, FLIPS, 0.9 * p)


def test_one_flip_tells_nothing_about_the_next() -> None:
    falls = [SecureCoin().coin(0.3) for _ in range(FLIPS)]
    both = sum(a and b for a, b in zip(falls[::2], falls[1::2], strict=True))
    assert fits(both, FLIPS // 2, 0.09)
    assert not fits(both, FLIPS // 2, 0.3)


def test_a_certain_coin_always_falls_and_a_hopeless_one_never() -> None:
    assert all(SecureCoin().coin(1.0) for _ in range(1000))
    assert not any(SecureCoin().coin(2.0**-54) for _ in range(1000))
