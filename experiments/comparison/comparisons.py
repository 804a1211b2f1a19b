"""What is compared: data shared out to clients, a plan for them, and the budgets."""

from __future__ import annotations

from dataclasses import dataclass, field

from coinflower.learning import Update
from coinflower.protocol.strict import Options
from coinflower.protocol.unit import Unit

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
DELTA = 1e-5
UPDATE = Update(momentum=0.9, schedule="cosine", warm_up_rounds=30, averaging=0.9)
"""How every training steps, beside its learning rate."""

STANDARDISED: Options = {"centre": 0.1307, "scale": 0.3081}
"""Of MNIST's pixels, which are public; EMNIST's digits and letters look the same."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One data set shared out in one way.

    Attributes:
        name: Its folder among the results.
        title: What it is called.
        source: Where its data comes from (`sources.py`).
        features: Public features that the model learns from instead of the data itself.
        clients: Number of clients.
        d: Units of the largest client.
        units: Units of all clients.
        partition: How units are shared out.
        unit: What is protected.
        model: The model.
        model_options: Its options.
        rounds: Length of every training.
        batch: Mean number of units in a round.
        p: Participation probability.
        rate: Learning rate to begin the search with.
        everybody_only: Whether only those lines are trained in which everybody takes part.
        over_clients: Numbers of clients among whom the same data is shared out, for the figure of
            trust over the number of clients; none if it is not drawn.
    """

    name: str
    title: str
    source: str
    clients: int
    d: int
    units: int
    rounds: int
    batch: float
    p: float
    rate: float
    model: str
    model_options: Options = field(default_factory=dict, hash=False)
    features: str | None = None
    partition: str = "equal"
    unit: Unit = Unit.RECORD
    everybody_only: bool = False
    over_clients: tuple[int, ...] = ()

    @property
    def q(self) -> float:
        """Sampling rate that makes the batch."""
        return self.batch / (self.p * self.units)


COMPARISONS = {
    each.name: each
    for each in (
        Comparison(
            name="mnist",
            title="MNIST, 2,000 clients of 30 images",
            source="mnist",
            clients=2000,
            d=30,
            units=60_000,
            rounds=100,
            batch=1875,
            p=0.25,
            rate=6.4,
            model="paper-cnn",
            model_options=STANDARDISED,
            over_clients=(5, 20, 100, 500, 2000),
        ),
        *(
            Comparison(
                name=name,
                title=f"MNIST, 2,000 clients of 30 images, the plan of 300 rounds, {title}",
                source="mnist",
                clients=2000,
                d=30,
                units=60_000,
                rounds=300,
                batch=3750,
                p=1.0,
                rate=6.4,
                model=model,
                model_options=STANDARDISED,
                everybody_only=True,
            )
            for name, model, title in (
                ("mnist-long", "paper-cnn", "the paper's network"),
                ("mnist-tanh", "tanh-cnn", "the same network with tanh"),
            )
        ),
        Comparison(
            name="clinics",
            title="a table of visits, 200 clinics of 50 patients, patients protected",
            source="clinics",
            clients=200,
            d=50,
            units=10_000,
            rounds=100,
            batch=625,
            p=0.25,
            rate=6.4,
            model="mlp",
            unit=Unit.PERSON,
        ),
        Comparison(
            name="mnist-scattering",
            title="MNIST, 2,000 clients of 30 images, public scattering features",
            source="mnist",
            features="scattering",
            clients=2000,
            d=30,
            units=60_000,
            rounds=100,
            batch=7500,
            p=0.25,
            rate=25.6,
            model="linear",
            everybody_only=True,
        ),
        Comparison(
            name="emnist-subset",
            title="a subset of EMNIST ByClass, 62 classes, 563 clients of 30 images",
            source="emnist",
            clients=563,
            d=30,
            units=16_890,
            rounds=100,
            batch=1056,
            p=0.25,
            rate=6.4,
            model="paper-cnn",
            model_options=STANDARDISED,
        ),
        Comparison(
            name="mnist-by-writer",
            title="MNIST, 539 clients, each one writer with up to 131 images",
            source="mnist",
            partition="writer",
            clients=539,
            d=131,
            units=60_000,
            rounds=100,
            batch=1875,
            p=0.25,
            rate=6.4,
            model="paper-cnn",
            model_options=STANDARDISED,
        ),
    )
}
