"""Randomness in several processes: forks, fresh starts and copies never draw alike."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from coinflower.learning import Randomness, SecureRandom, SeededRandom

FALSE_ALARM = 1e-6
DRAWS = 4000
ROOT = Path(__file__).parents[2]

SHARE = 0.3
FRESH = f"""
import sys
from coinflower.learning import SecureRandom
source = SecureRandom()
taken = bytearray({DRAWS})
for row in source.sample_indices({DRAWS}, {SHARE}):
    taken[row] = 1
coins = bytes(source.coin({SHARE}) for _ in range({DRAWS}))
sys.stdout.buffer.write(source.normal({DRAWS}, 1.0).tobytes() + taken + coins)
"""


def in_child(draw: Callable[[], bytes]) -> bytes:
    """Return what a forked child draws."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(draw())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        drawn = pipe.read()
    os.waitpid(child, 0)
    return drawn


def noise(source: Randomness) -> bytes:
    return source.normal(DRAWS, 1.0).tobytes()


def look_alike(streams: list[bytes]) -> bool:
    """Whether any two streams of noise are correlated; false alarms once in 10⁶ in all."""
    vectors = [np.frombuffer(stream, np.float64) for stream in streams]
    assert all(len(vector) == DRAWS for vector in vectors)
    pairs = list(itertools.combinations(vectors, 2))
    limit = stats.norm.isf(FALSE_ALARM / 2 / len(pairs))
    return any(abs(float(a @ b)) / math.sqrt(DRAWS) > limit for a, b in pairs)


def test_forked_children_their_children_and_the_parent_draw_independent_noise() -> None:
    source = SecureRandom()
    noise(source)
    children = [in_child(lambda: noise(source)) for _ in range(4)]
    grandchild = in_child(lambda: in_child(lambda: noise(source)))
    assert not look_alike([noise(source), *children, grandchild])


def test_a_child_that_drew_before_it_forked_shares_nothing_with_its_own_child() -> None:
    source = SecureRandom()

    def draw_in_two_generations() -> bytes:
        source.normal(7, 1.0)
        below = in_child(lambda: noise(source))
        return noise(source) + below

    both = in_child(draw_in_two_generations)
    assert not look_alike([both[: 8 * DRAWS], both[8 * DRAWS :], noise(source)])


def test_shared_noise_would_be_noticed() -> None:
    source = SeededRandom(1)
    assert look_alike([in_child(lambda: noise(source)), noise(source)])


def samples(source: Randomness) -> bytes:
    taken = np.zeros(DRAWS, np.uint8)
    taken[source.sample_indices(DRAWS, SHARE)] = 1
    return taken.tobytes()


def coins(source: Randomness) -> bytes:
    return bytes(source.coin(SHARE) for _ in range(DRAWS))


def overlap_fits(one: bytes, other: bytes) -> bool:
    """Whether both are heads as often at once as independent ones are; false alarm 10⁻⁶."""
    both = int((np.frombuffer(one, np.uint8) & np.frombuffer(other, np.uint8)).sum())
    return bool(stats.binomtest(both, DRAWS, SHARE**2).pvalue >= FALSE_ALARM)


@pytest.mark.parametrize("draw", [samples, coins])
def test_a_fork_samples_other_rows_and_flips_other_coins(
    draw: Callable[[Randomness], bytes],
) -> None:
    source = SecureRandom()
    assert overlap_fits(in_child(lambda: draw(source)), draw(source))
    seeded = SeededRandom(1)
    assert not overlap_fits(in_child(lambda: draw(seeded)), draw(seeded))


def test_after_a_restart_noise_samples_and_coins_are_new() -> None:
    one, other = (
        subprocess.run(
            [sys.executable, "-c", FRESH], cwd=ROOT, capture_output=True, check=True
        ).stdout
        for _ in range(2)
    )
    assert not look_alike([one[: 8 * DRAWS], other[: 8 * DRAWS]])
    for start in (8 * DRAWS, 9 * DRAWS):
        assert overlap_fits(one[start : start + DRAWS], other[start : start + DRAWS])


def test_samples_noise_and_coins_of_one_source_tell_nothing_of_each_other() -> None:
    source = SecureRandom()
    taken, flipped = samples(source), coins(source)
    assert overlap_fits(taken, flipped)
    vector = np.frombuffer(noise(source), np.float64)
    for chosen in (taken, flipped):
        where = np.frombuffer(chosen, np.uint8) == 1
        assert stats.ttest_ind(vector[where], vector[~where]).pvalue >= FALSE_ALARM


def test_many_sources_of_one_process_draw_independent_noise() -> None:
    assert not look_alike([noise(SecureRandom()) for _ in range(8)])
