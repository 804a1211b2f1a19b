import copy
import math
import os
import pickle

import numpy as np
import pytest
from scipy import stats

from coinflower.learning import Randomness, SecureRandom, SeededRandom
from coinflower.learning.randomness import _normal

FALSE_ALARM = 1e-6
SOURCES = {"secure": SecureRandom, "seeded": lambda: SeededRandom(1)}


@pytest.fixture(params=SOURCES)
def randomness(request) -> Randomness:
    return SOURCES[request.param]()


def fits_rate(hits: int, trials: int, rate: float) -> bool:
    """Two-sided exact binomial test; rejects a true rate with probability FALSE_ALARM."""
    return stats.binomtest(hits, trials, rate).pvalue >= FALSE_ALARM


def fits_std(draws: np.ndarray, std: float) -> bool:
    """Two-sided χ² test of the mean square; rejects the true std with probability FALSE_ALARM."""
    statistic = float(np.sum(draws.astype(np.float64) ** 2) / std**2)
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], len(draws))
    return low <= statistic <= high


@pytest.mark.parametrize(("n", "q"), [(1_000_000, 0.01), (4_000_000, 0.003), (200_000, 0.5)])
def test_the_sampling_rate_is_right_and_ten_percent_off_would_be_noticed(randomness, n, q):
    hits = len(randomness.sample_indices(n, q))
    assert fits_rate(hits, n, q)
    assert not fits_rate(hits, n, 0.9 * q)
    assert not fits_rate(hits, n, 1.1 * q)


def test_rates_below_the_first_sixteen_bits_are_right_too(randomness):
    q = 0.3 / 65536
    hits = sum(len(randomness.sample_indices(1_000_000, q)) for _ in range(200))
    assert fits_rate(hits, 200_000_000, q)
    assert not fits_rate(hits, 200_000_000, 0.7 * q)


def test_indices_are_drawn_independently(randomness):
    n, q = 500_000, 0.3
    taken = np.zeros(n, dtype=bool)
    taken[randomness.sample_indices(n, q)] = True
    pairs = taken.reshape(-1, 2)
    assert fits_rate(int(pairs.all(1).sum()), len(pairs), q * q)
    assert fits_rate(int(taken[: n // 2].sum()), n // 2, q)


def test_batch_sizes_spread_as_a_binomial(randomness):
    sizes = np.array([len(randomness.sample_indices(1000, 0.1)) for _ in range(20_000)])
    # The variance of the sample variance of near-normal values is 2·variance²/(count - 1).
    expected = 1000 * 0.1 * 0.9
    limit = stats.norm.isf(FALSE_ALARM / 2) * expected * math.sqrt(2 / (len(sizes) - 1)) * 1.05
    assert abs(sizes.var(ddof=1) - expected) <= limit
    assert abs(sizes.var(ddof=1) - 1.1 * expected) > limit


def test_certain_and_impossible_rates_are_exact(randomness):
    assert np.array_equal(randomness.sample_indices(1000, 1.0), np.arange(1000))
    assert len(randomness.sample_indices(100_000, 0.0)) == 0
    assert len(randomness.sample_indices(0, 0.5)) == 0
    assert all(randomness.coin(1.0) for _ in range(100))
    assert not any(randomness.coin(0.0) for _ in range(100))


def test_indices_ascend_and_are_integers(randomness):
    rows = randomness.sample_indices(10_000, 0.2)
    assert rows.dtype == np.int64
    assert (np.diff(rows) > 0).all()


def test_a_million_elements_are_sampled_in_few_draws(monkeypatch):
    """One draw of 16 bits for all, and 48 bits more for each of the 15 or so that tie."""
    urandom, asked = os.urandom, []

    def count(size):
        asked.append(size)
        return urandom(size)

    monkeypatch.setattr(os, "urandom", count)
    SecureRandom().sample_indices(1_000_000, 1e-4)
    assert asked[0] == 2_000_000
    assert set(asked[1:]) <= {6}
    assert len(asked) < 60  # by chance it is not, 2e-17


def test_coins_land_as_often_as_they_should(randomness):
    trials, p = 40_000, 0.2
    heads = sum(randomness.coin(p) for _ in range(trials))
    assert fits_rate(heads, trials, p)
    assert not fits_rate(heads, trials, 0.9 * p)
    assert not fits_rate(heads, trials, 1.1 * p)


def test_the_noise_has_the_standard_deviation_asked_for(randomness):
    draws = randomness.normal(200_000, 3.0)
    assert draws.dtype == np.float64
    assert fits_std(draws, 3.0)
    assert not fits_std(draws, 2.7)
    assert not fits_std(draws, 3.3)


def test_draws_that_are_made_in_pairs_are_independent(randomness):
    first, second = randomness.normal(200_000, 1.0).astype(np.float64).reshape(2, -1)
    # Independent variables have correlations of spread 1/sqrt(n): six of them, 2e-9 by chance.
    for one, other in ((first, second), (first**2, second**2), (np.abs(first), second)):
        assert abs(np.corrcoef(one, other)[0, 1]) < 6 / math.sqrt(len(first))


def test_the_far_tail_goes_beyond_the_bits_of_one_draw():
    class Extreme:
        """Gives the largest uniform draw there is."""

        def random(self, count):
            return np.full(count, 1 - 2.0**-53)

    (draw,) = _normal(Extreme(), 1, 1.0)
    # With 53 bits alone no draw is longer than sqrt(2 log 2^53) = 8.57.
    assert abs(draw) > 12


def test_the_noise_is_normal_and_uncorrelated(randomness):
    draws = randomness.normal(200_000, 1.0).astype(np.float64)
    assert stats.kstest(draws, "norm").pvalue >= FALSE_ALARM
    correlation = float(np.mean(draws[1:] * draws[:-1])) * math.sqrt(len(draws))
    assert abs(correlation) <= stats.norm.isf(FALSE_ALARM / 2)


def test_no_deviation_gives_exact_zeros(randomness):
    assert np.array_equal(randomness.normal(10, 0.0), np.zeros(10))


def test_only_the_seeded_source_is_called_insecure():
    assert SecureRandom().insecure is False
    assert SeededRandom(0).insecure is True


def test_equal_seeds_give_equal_draws():
    one, two = SeededRandom(7), SeededRandom(7)
    assert np.array_equal(one.normal(5, 1.0), two.normal(5, 1.0))
    assert np.array_equal(one.sample_indices(99, 0.5), two.sample_indices(99, 0.5))
    assert one.coin(0.5) == two.coin(0.5)
    assert not np.array_equal(one.normal(5, 1.0), SeededRandom(8).normal(5, 1.0))


def drawn_in_child_and_parent(source: Randomness) -> tuple[bytes, bytes]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, source.normal(16, 1.0).tobytes())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        drawn = pipe.read()
    os.waitpid(child, 0)
    return drawn, source.normal(16, 1.0).tobytes()


def test_after_a_fork_parent_and_child_draw_differently():
    source = SecureRandom()
    source.normal(3, 1.0)
    child, parent = drawn_in_child_and_parent(source)
    assert len(child) == len(parent) == 128
    assert child != parent


def test_the_fork_test_would_notice_a_shared_state():
    child, parent = drawn_in_child_and_parent(SeededRandom(1))
    assert child == parent


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, copy.copy, lambda s: pickle.loads(pickle.dumps(s))]
)
def test_a_copy_of_the_secure_source_has_a_key_of_its_own(duplicate):
    source = SecureRandom()
    other = duplicate(source)
    assert not np.array_equal(source.normal(8, 1.0), other.normal(8, 1.0))


@pytest.mark.parametrize("probability", [-0.1, 1.1, math.nan])
def test_what_is_no_probability_is_refused(randomness, probability):
    with pytest.raises(ValueError, match=f"p = {probability}"):
        randomness.coin(probability)
    with pytest.raises(ValueError, match=f"q = {probability}"):
        randomness.sample_indices(10, probability)


@pytest.mark.parametrize("std", [-1.0, math.inf, math.nan])
def test_what_is_no_standard_deviation_is_refused(randomness, std):
    with pytest.raises(ValueError, match=f"std = {std}"):
        randomness.normal(10, std)


def test_a_negative_number_of_elements_is_refused(randomness):
    with pytest.raises(ValueError, match="n = -1"):
        randomness.sample_indices(-1, 0.5)


def test_every_draw_of_noise_has_a_key_of_its_own_and_forgets_it(monkeypatch):
    """Whoever reads the memory afterwards finds nothing that gives earlier noise back."""
    import randomgen

    made, keys = [], []

    class Watched(randomgen.AESCounter):
        def __init__(self, *, key):
            super().__init__(key=key)
            made.append(self)
            keys.append(key)

    monkeypatch.setattr(randomgen, "AESCounter", Watched)
    source = SecureRandom()
    for _ in range(3):
        source.normal(100, 1.0)
    assert len(set(keys)) == 3
    assert vars(source) == {}
    spent = Watched(key=0).state["s"]["seed"]
    for bits, key in zip(made[:3], keys[:3], strict=True):
        assert np.array_equal(bits.state["s"]["seed"], spent)
        assert not np.array_equal(Watched(key=key).state["s"]["seed"], spent)


def test_draws_have_the_bits_of_double_precision(randomness):
    draws = randomness.normal(1000, 1.0)
    assert np.mean(draws != draws.astype(np.float32)) > 0.99
