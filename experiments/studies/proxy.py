"""How well the choices of a plan learn on public data, in the simulator.

The federation's own data is never touched: a learning rate chosen by it would cost privacy that no
ledger counts. The proxy's clients are as large as the plan's. If it makes fewer of them, its
batches are smaller; the noise on the mean gradient is the plan's all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from coinflower.accounting.errors import UserError
from coinflower.experiments.simulator.request import Request
from coinflower.experiments.simulator.simulated_run import run_request
from coinflower.learning import Dataset, Update
from coinflower.learning.data.persons import units_of
from coinflower.protocol.modes import Mode
from coinflower.protocol.planning.choices import CLIP_NORM, Choice, learning_rates, update_for
from coinflower.protocol.planning.planner import Wishes
from coinflower.protocol.unit import Unit

_FACTOR = 2.0  # between two learning rates
_MOST_RATES = 8


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One training on the proxy.

    Attributes:
        choice: The choice.
        learning_rate: Its learning rate.
        accuracy: On the proxy's test part.
    """

    choice: Choice
    learning_rate: float
    accuracy: float

    def figures(self) -> dict[str, Any]:
        """Return it for programs."""
        split = self.choice.split
        return {
            **{"p": split.p, "q": split.q, "cap": split.cap, "sigma": split.sigma},
            **{"learning_rate": self.learning_rate, "accuracy": self.accuracy},
        }


def tune(
    wishes: Wishes,
    tried: list[Choice],
    data: Dataset,
    *,
    learned: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
    seed: int | None = None,
) -> list[Tried]:
    """Return all trainings, the best first.

    Each choice tries the learning rates that the plan thinks worth it, and goes on beyond them
    while the best of them lies at their edge.

    Args:
        wishes: What is wished for.
        tried: Choices of the plan.
        data: Public data with a test part.
        learned: What is learned by which model, by the names of a simulation's request.
        progress: Told how many of how many iterations are done.
        seed: Seeds everything.
    """
    grid: list[Tried] = []
    for number, choice in enumerate(tried):
        rates = _rates(choice, wishes.parameters)
        found: list[Tried] = []
        while rates and len(found) < _MOST_RATES:
            rate = rates.pop(0)
            left = len(rates) + (len(tried) - number - 1) * 3

            def advance(curve: Any, done: int = len(grid), left: int = left) -> None:
                every = (done + 1 + left) * wishes.rounds
                progress(done * wishes.rounds + curve.iterations, every)

            found.append(_train(wishes, choice, data, learned or {}, rate, seed, advance))
            grid.append(found[-1])
            rates = rates or list(_beyond(found))
    return sorted(grid, key=lambda each: -each.accuracy)


def _rates(choice: Choice, parameters: int) -> list[float]:
    """Return learning rates to try first, from the least to the largest."""
    least, first, largest = learning_rates(choice.noise_share, parameters)
    return sorted({least, first, largest})


def _beyond(found: list[Tried]) -> Iterator[float]:
    """Yield the next learning rate if the best one so far lies at the edge."""
    best = max(found, key=lambda each: each.accuracy).learning_rate
    rates = [each.learning_rate for each in found]
    if best == max(rates):
        yield float(f"{best * _FACTOR:.3g}")
    elif best == min(rates):
        yield float(f"{best / _FACTOR:.3g}")


def _train(
    wishes: Wishes,
    choice: Choice,
    data: Dataset,
    learned: Mapping[str, Any],
    rate: float,
    seed: int | None,
    advance: Callable[[Any], None],
) -> Tried:
    # Public data need not say whose its rows are.
    unit = Unit.RECORD if data.train.persons is None else wishes.unit
    size = len(units_of(data.train, unit, data.name))
    d = min(wishes.d, size)
    clients = min(wishes.clients, size // d)
    split = choice.split
    request = Request(
        scenario="many-small",
        data=data.name,
        iterations=wishes.rounds,
        clients=clients,
        d=d,
        p=split.p,
        q=split.q,
        cap=split.cap,
        clip_norm=CLIP_NORM,
        # Whoever adds it in the plan: here it is one noise of this size in every sum.
        sigma=choice.noise_share * split.p * split.q * clients * d,
        noise=Mode.TRUSTED,
        update=Update(learning_rate=rate, **update_for(wishes.rounds)),
        **{**learned, "model": wishes.model, "unit": unit},
        evaluate_every=wishes.rounds,
        seed=seed,
    )
    accuracy = run_request(request, data=data, progress=advance)["accuracy"]
    if accuracy is None:
        raise UserError(f"{data.name} has no classes to tell apart, so it cannot tune a plan.")
    return Tried(choice=choice, learning_rate=rate, accuracy=accuracy)
