"""When does a coin pay? Its price in noise against everybody always taking part, as one map.

The data, the mean batch and the rounds are the same everywhere on the map: p·q is fixed, and the
same records lie with clients of more or fewer. With p = 1 the same batch needs the least noise of
all, that of data in one place; a coin saves messages, and the map shows for how much more noise.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coinflower.accounting import validation
from coinflower.accounting.analyses.baselines import OnlyLocalSampling, WeakClientSampling
from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.composition.calibration import least_sigma
from coinflower.accounting.composition.secrecy import secret_coin_pays
from coinflower.accounting.errors import UserError
from coinflower.accounting.mechanism import Round
from coinflower.accounting.plots import new_panels, save

NAME = "coin-map"
_LEAST_SAMPLES, _MOST_SAMPLES = 0.1, 100.0
_LEVELS = (1.1, 1.5, 2.0, 3.0, 5.0)


@dataclass(frozen=True, kw_only=True)
class CoinMap:
    """What is mapped.

    Attributes:
        rate: Share of all records in a round, p·q.
        epsilon: ε of all rounds together.
        delta: At this δ.
        rounds: Numbers of rounds, a column of panels each.
        caps: Largest norms of a client's sum in clip norms, ∞ for none, a row of panels each.
        points: Values of p, and of the mean sample d·q, along an axis.
    """

    rate: float = 0.01
    epsilon: float = 1.0
    delta: float = 1e-5
    rounds: tuple[int, ...] = (100, 1000, 10_000)
    caps: tuple[float, ...] = (math.inf, 4.0, 2.0, 1.0)
    points: int = 13

    def __post_init__(self) -> None:
        """Check what no calibration checks."""
        validation.require_probability("rate", self.rate)
        if self.rate == 1:
            raise UserError("rate = 1 leaves no coin to flip: everybody sends everything.")
        validation.require_count("points", self.points, least=2)
        for field, values in (("rounds", self.rounds), ("caps", self.caps)):
            if not values:
                raise UserError(f"{field} must name at least one value.")
        for cap in self.caps:
            Round(p=1.0, q=self.rate, d=1, noise_multiplier=1.0, cap=cap)

    @property
    def ps(self) -> list[float]:
        """Participation probabilities, from q = 1 to everybody."""
        return np.geomspace(self.rate, 1.0, self.points).clip(self.rate, 1.0).tolist()  # type: ignore[no-any-return]

    @property
    def samples(self) -> list[float]:
        """Mean numbers of records that a participant samples, d·q."""
        return np.geomspace(_LEAST_SAMPLES, _MOST_SAMPLES, self.points).tolist()  # type: ignore[no-any-return]

    def size(self, p: float, samples: float) -> int:
        """Return the client size d at which a participant samples so many; 0 if there is none."""
        return round(samples * p / self.rate)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One place on the map.

    Attributes:
        rounds: Number of rounds.
        cap: In clip norms; ∞ for none.
        p: Participation probability, and messages a round over clients.
        q: Sampling rate.
        d: Client size.
        samples: Mean sample of a participant, d·q before d was rounded.
        sigma: Least noise, certified.
        sigma_if_seen: Least noise if everybody sees who takes part.
        sigma_everybody: Least noise if everybody always takes part, at the same batch.
        price: The first over the last.
        secret_coin_pays: Whether the first is below the second by more than rounding.
    """

    rounds: int
    cap: float
    p: float
    q: float
    d: int
    samples: float
    sigma: float
    sigma_if_seen: float
    sigma_everybody: float
    price: float
    secret_coin_pays: bool


def survey(asked: CoinMap) -> Iterator[tuple[int, list[Point]]]:
    """Yield the points of the map, panel by panel, with the number of panels."""
    panels = len(asked.rounds) * len(asked.caps)
    for rounds in asked.rounds:
        target: dict[str, Any] = {
            "epsilon": asked.epsilon,
            "delta": asked.delta,
            "rounds": rounds,
        }
        everybody = least_sigma(OnlyLocalSampling, p=1.0, q=asked.rate, d=1, **target)
        seen = {
            p: least_sigma(WeakClientSampling, p=p, q=min(1.0, asked.rate / p), d=1, **target)
            for p in asked.ps
        }
        for cap in asked.caps:
            found = []
            for p in asked.ps:
                q = min(1.0, asked.rate / p)
                for samples in asked.samples:
                    d = asked.size(p, samples)
                    if d == 0:
                        continue
                    sigma = least_sigma(Certified, p=p, q=q, d=d, cap=cap, **target)
                    found.append(
                        Point(
                            rounds=rounds,
                            cap=cap,
                            p=p,
                            q=q,
                            d=d,
                            samples=samples,
                            sigma=sigma,
                            sigma_if_seen=seen[p],
                            sigma_everybody=everybody,
                            price=sigma / everybody,
                            secret_coin_pays=secret_coin_pays("sigma", hidden=sigma, seen=seen[p]),
                        )
                    )
            yield panels, found


def write_map(asked: CoinMap, found: list[Point], out: Path) -> list[Path]:
    """Write the map as PNG and CSV into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{NAME}{suffix}" for suffix in (".png", ".csv")]
    with paths[-1].open("w", newline="") as file:
        writer = csv.DictWriter(file, list(Point.__dataclass_fields__), lineterminator="\n")
        writer.writeheader()
        for point in found:
            row = asdict(point)
            writer.writerow({k: f"{v:.6g}" if type(v) is float else v for k, v in row.items()})
    _draw(asked, found, paths[0])
    return paths


def _draw(asked: CoinMap, found: list[Point], path: Path) -> None:
    from matplotlib import colors, ticker

    figure, panels = new_panels(len(asked.caps), len(asked.rounds))
    norm = colors.LogNorm(1.0, max(1.2, *(point.price for point in found)))
    prices = {(e.rounds, e.cap, e.p, e.samples): e for e in found}
    for row, cap in enumerate(asked.caps):
        for column, rounds in enumerate(asked.rounds):
            axes = panels[row][column]
            grid = [
                [prices.get((rounds, cap, p, samples)) for samples in asked.samples]
                for p in asked.ps
            ]
            price = np.array([[e.price if e else math.nan for e in line] for line in grid])
            in_vain = [
                [e is not None and e.p < 1 and not e.secret_coin_pays for e in line]
                for line in grid
            ]
            mesh = axes.pcolormesh(
                asked.samples, asked.ps, price, norm=norm, cmap="viridis_r", shading="nearest"
            )
            lines = axes.contour(
                asked.samples, asked.ps, price, levels=_LEVELS, colors="white", linewidths=1
            )
            axes.clabel(lines, fmt=lambda level: f"×{level:g}", fontsize=7)
            if np.any(in_vain):
                axes.contourf(
                    *(asked.samples, asked.ps, np.array(in_vain, dtype=float)),
                    levels=[0.5, 1.5],
                    colors="none",
                    hatches=["...."],
                )
            axes.set(xscale="log", yscale="log")
            axes.set_facecolor("0.9")
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
            limit = "no cap" if math.isinf(cap) else f"cap {cap:g}"
            axes.set_title(f"{rounds:,} rounds, {limit}", fontsize=9)
            if row == len(asked.caps) - 1:
                axes.set_xlabel("d·q, a participant's mean sample")
            if column == 0:
                axes.set_ylabel("p, messages / clients")
    bar = figure.colorbar(mesh, ax=panels, shrink=0.6, label="noise over that of p = 1")
    bar.ax.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"×{value:g}"))
    bar.ax.yaxis.set_minor_formatter(ticker.FuncFormatter(lambda value, _: f"×{value:g}"))
    save(figure, path)
