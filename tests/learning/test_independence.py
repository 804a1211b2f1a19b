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
from scipy import stats

from learning import Randomness, SecureRandom, SeededRandom

FALSE_ALARM = 1e-6
DRAWS = 4000
ROOT = Path(__file__).parents[2]

# Only the module itself: a fresh interpreter need not import torch for it.
FRESH = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("r", {str(ROOT / "learning" / "randomness.py")!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
source = module.SecureRandom()
taken = bytearray({DRAWS})
for row in source.sample_indices({DRAWS}, 0.3):
    taken[row] = 1
sys.stdout.buffer.write(source.normal({DRAWS}, 1.0).tobytes() + taken)
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
    vectors = [np.frombuffer(stream, np.float32).astype(np.float64) for stream in streams]
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
    assert not look_alike([both[: 4 * DRAWS], both[4 * DRAWS :], noise(source)])


def test_shared_noise_would_be_noticed() -> None:
    source = SeededRandom(1)
    assert look_alike([in_child(lambda: noise(source)), noise(source)])


def samples(source: Randomness) -> bytes:
    taken = np.zeros(DRAWS, np.uint8)
    taken[source.sample_indices(DRAWS, 0.3)] = 1
    return taken.tobytes()


def overlap_fits(one: bytes, other: bytes) -> bool:
    """Whether both samples share as many rows as independent ones do; false alarm 10⁻⁶."""
    both = int((np.frombuffer(one, np.uint8) & np.frombuffer(other, np.uint8)).sum())
    return bool(stats.binomtest(both, DRAWS, 0.09).pvalue >= FALSE_ALARM)


def test_a_fork_samples_other_rows() -> None:
    source = SecureRandom()
    assert overlap_fits(in_child(lambda: samples(source)), samples(source))
    seeded = SeededRandom(1)
    assert not overlap_fits(in_child(lambda: samples(seeded)), samples(seeded))


def test_after_a_restart_noise_and_samples_are_new() -> None:
    runs = [
        subprocess.run([sys.executable, "-c", FRESH], capture_output=True, check=True).stdout
        for _ in range(2)
    ]
    assert not look_alike([run[: 4 * DRAWS] for run in runs])
    assert overlap_fits(*(run[4 * DRAWS :] for run in runs))


def test_many_sources_of_one_process_draw_independent_noise() -> None:
    assert not look_alike([noise(SecureRandom()) for _ in range(8)])
