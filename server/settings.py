"""What the parameter server is told to do: the terms, and what concerns the server alone."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from coinflower.accounting import validation
from coinflower.accounting.errors import UserError
from coinflower.protocol.terms import Terms
from coinflower.protocol.toml import read_toml, require_known_keys
from coinflower.server.roster import LARGEST_TOTAL_SIZE, SizeLimits


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A run of the server.

    Attributes:
        terms: The public terms.
        state: Folder for checkpoint, metrics and the final model.
        test_data: Name or path of a *public* data set whose test part measures accuracy.
        least_clients: Fewest available clients for a round.
        expected_clients: The first round waits a little until so many have enrolled or refused.
        patience_seconds: How long to wait for them before giving up.
        reply_seconds: How long a client may take to answer.
        poll_seconds: Pause between two looks for replies; stock Flower's is 3.
        round_seconds: From the beginning of a round to that of the next, so that other clients do
            not see who takes part by how long a round lasts; None begins it as soon as possible.
        evaluate_every: Rounds between two measurements of accuracy.
        resume: Go on from the checkpoint in ``state``.
        largest_declared_size: Clients that declare more samples than this stay out.
        largest_total_size: So do those that would bring all declared sizes above this.
        insecure_seed: Makes the noise predictable; for tests only.
    """

    terms: Terms
    state: Path
    test_data: str
    least_clients: int = 1
    expected_clients: int = 1
    patience_seconds: float = 300.0
    reply_seconds: float = 60.0
    poll_seconds: float = 0.05
    round_seconds: float | None = None
    evaluate_every: int = 5
    resume: bool = False
    largest_declared_size: int = SizeLimits.each
    largest_total_size: int = SizeLimits.together
    insecure_seed: int | None = None

    def __post_init__(self) -> None:
        """Check every field once."""
        if not isinstance(self.test_data, str) or not self.test_data:
            raise UserError("test_data must name a public data set.")
        if not isinstance(self.resume, bool):
            raise UserError(f"resume = {self.resume!r} must be true or false.")
        if self.insecure_seed is not None:
            validation.require_count("insecure_seed", self.insecure_seed, least=0)
        validation.require_count("least_clients", self.least_clients, least=1)
        validation.require_count("expected_clients", self.expected_clients, least=1)
        validation.require_count("evaluate_every", self.evaluate_every, least=1)
        for name in ("largest_declared_size", "largest_total_size"):
            validation.require_count(name, getattr(self, name), least=1)
            if getattr(self, name) > LARGEST_TOTAL_SIZE:
                raise UserError(
                    f"{name} = {getattr(self, name)} must be at most {LARGEST_TOTAL_SIZE}: the sum "
                    "of a round can hold no more."
                )
        validation.require_positive("patience_seconds", self.patience_seconds)
        validation.require_positive("reply_seconds", self.reply_seconds)
        validation.require_positive("poll_seconds", self.poll_seconds)
        if self.round_seconds is not None:
            validation.require_positive("round_seconds", self.round_seconds)


def save_settings(settings: Settings, path: Path) -> None:
    """Write the settings as TOML."""
    table: dict[str, Any] = {
        key: value
        for key, value in vars(settings).items()
        if value is not None and key not in ("terms", "state")
    }
    table["state"] = str(settings.state.absolute())
    table["terms"] = settings.terms.to_fields()
    path.write_text(tomli_w.dumps(table))


def load_settings(path: Path) -> Settings:
    """Read a settings file; a relative ``state`` in it starts at its folder.

    Raises:
        ValueError: Naming the file, the key and what is wrong with it.
    """
    table = read_toml(path)
    where = f"The settings {path}"
    known = [field.name for field in dataclasses.fields(Settings)]
    require_known_keys(table, known, ("terms", "state", "test_data"), where)
    try:
        if not isinstance(table["terms"], dict):
            raise UserError("[terms] must be a table.")
        if not isinstance(table["state"], str):
            raise UserError(f"state = {table['state']!r} must be a path.")
        terms = Terms.from_fields(table.pop("terms"))
        return Settings(terms=terms, state=path.parent / table.pop("state"), **table)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where} cannot be used: {error}") from None
