"""A federation of clients with tables, over the grid in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coinflower.learning import build_model, clipped_gradient_sum, load_parameters, to_tensor
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import Refusal
from coinflower.server.app import require_ready
from coinflower.server.clients.attendance import TooFewClientsError
from coinflower.server.settings import Settings, load_settings, save_settings
from tests.support import tables
from tests.support.memory_grid import Federation, make_federation


def ward_federation(folder: Path, **changes: Any) -> Federation:
    """Three wards of twelve rows each."""
    schema = tables.write_schema(folder / "schema.toml")
    policy = {}
    for index in range(3):
        tables.write_ward(folder / f"ward-{index}.csv", tables.ward_rows(12, seed=index))
        policy[index] = {
            "data": f"ward-{index}.csv",
            "schema": "schema.toml",
            "models": [tables.MODEL],
        }
    fields = {"model": tables.MODEL, "classes": 2, "schema": schema, "p": 1.0, "q": 1.0}
    return make_federation(folder, Mode.NONE, policy=policy, **{**fields, **changes})


def test_clients_with_tables_train_a_model_over_the_grid(tmp_path: Path) -> None:
    fed = ward_federation(tmp_path, noise_multiplier=0.0, rounds=1, clip_norm=1.0)
    before = fed.initial()
    after = fed.run()
    model = build_model(tables.MODEL, classes=2)
    load_parameters(model, before)
    total = np.zeros_like(before)
    for node in fed.nodes:
        records = fed.data(node)
        targets = torch.from_numpy(records.targets)
        total += clipped_gradient_sum(model, to_tensor(records.inputs), targets, 1.0).numpy()
    assert np.allclose(after, before - fed.update.learning_rate * total / 36, atol=1e-6)


def test_terms_without_the_schema_are_another_experiment_and_refused(tmp_path: Path) -> None:
    fed = ward_federation(tmp_path, schema=None)
    told: list[str] = []
    with pytest.raises(TooFewClientsError):
        fed.run(
            least_clients=1,
            patience_seconds=0.2,
            no_other_clients=True,
            on_refusals=told.append,
        )
    assert Refusal.SCHEMA.value in told[-1]
    assert all(fed.entries(node, "charge") == [] for node in fed.nodes)


def test_the_server_measures_with_a_table_read_by_the_schema_of_the_terms(tmp_path: Path) -> None:
    fed = ward_federation(tmp_path)
    settings = Settings(
        terms=fed.terms,
        state=fed.state,
        test_data=str(tables.write_ward(tmp_path / "public.csv", tables.ward_rows(40, seed=9))),
        schema=tmp_path / "schema.toml",
    )
    save_settings(settings, tmp_path / "settings.toml")
    test, _, _ = require_ready(load_settings(tmp_path / "settings.toml"))
    assert len(test) == 40
    other = tables.SCHEMA.replace("[0, 100]", "[0, 50]")
    hash_ = tables.write_schema(tmp_path / "schema.toml", other)
    with pytest.raises(ValueError, match=f'another schema than .*let them have schema = "{hash_}"'):
        require_ready(settings)
