"""Several trainings at a time, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from coinflower.accounting.errors import UserError

Job = TypeVar("Job", bound=Hashable)
Result = TypeVar("Result")


def played_side_by_side(
    wanted: Callable[[], Iterable[Job]],
    play: Callable[[Job], Result],
    *,
    jobs: int,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Job, Result]]:
    """Yield jobs with their results as they end, until nothing more is wanted.

    Args:
        wanted: Asked again whenever there is room: what is to be played next, the most urgent
            first. It may depend on the results so far; what is being played is not begun again.
        play: Plays one; called in another process, so it must be found by its name.
        jobs: How many at a time.
        stopped: Asked before each; those in hand end, since each is short, and then kept.

    Raises:
        UserError: Somebody, or a machine without memory, ended a process that played one.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_leave_ctrl_c) as pool:
        pending: dict[Future[Result], Job] = {}
        while True:
            in_hand = set(pending.values())
            for job in wanted() if not stopped() else ():
                if len(pending) >= jobs:
                    break
                if job not in in_hand:
                    pending[pool.submit(play, job)] = job
                    in_hand.add(job)
            if not pending:
                return
            done, _ = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                try:
                    result = future.result()
                except BrokenProcessPool:
                    raise UserError(
                        "A process that trained was ended from outside, perhaps for want of "
                        "memory. What was trained before is kept; to continue, repeat the command."
                    ) from None
                yield pending.pop(future), result


def _leave_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
