"""Trainings in processes of their own: what comes of them, and what is said if one is killed."""

from __future__ import annotations

import os
import signal

import pytest

from coinflower.accounting.errors import UserError
from coinflower.experiments.studies.side_by_side import played_side_by_side


def test_a_training_that_is_killed_is_told_in_a_sentence_and_what_was_played_is_kept() -> None:
    played: dict[int, int] = {}
    results = played_side_by_side(
        lambda: [job for job in (-4, 5) if job not in played], _play, jobs=1
    )
    played.update([next(results)])
    assert played == {-4: 4}
    with pytest.raises(UserError, match=r"ended from outside.*repeat the command"):
        next(results)


def _play(job: int) -> int:
    if job > 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return abs(job)
