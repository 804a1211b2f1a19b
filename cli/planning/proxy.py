"""Tuning a plan on public data, with a bar that shows how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from coinflower.deploy.terminal import console
from coinflower.protocol.planning.choices import Choice
from coinflower.protocol.planning.planner import Wishes

if TYPE_CHECKING:
    from coinflower.experiments.studies.proxy import Tried
    from coinflower.learning import Dataset


def load_proxy(spec: str, schema: Path | None) -> Dataset:
    """Return public data by name or path, with a part that measures accuracy."""
    from coinflower.learning import load_data, with_test_part

    return with_test_part(load_data(spec, schema=schema, numbers=None))


def tune_on(
    data: Dataset,
    wishes: Wishes,
    tried: list[Choice],
    *,
    learned: Mapping[str, Any],
    seed: int | None,
    quiet: bool,
) -> list[Tried]:
    """Return how well choices learn on public data, the best first."""
    from coinflower.experiments.studies.proxy import tune

    columns = (TextColumn("tuning on {task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=quiet) as bar:
        task = bar.add_task(data.name, total=None)

        def advance(done: int, every: int) -> None:
            bar.update(task, completed=done, total=every)

        return tune(wishes, tried, data, learned=learned, progress=advance, seed=seed)
