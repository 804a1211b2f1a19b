"""What the container cluster is to be, as environment variables state it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coinflower.accounting import validation
from coinflower.accounting.errors import UserError
from coinflower.deploy.containers.compose_clients import OWN_CLIENTS
from coinflower.protocol.modes import Mode, parse_mode


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the cluster is to be.

    Attributes:
        mode: Privacy mode.
        clients: Number of clients.
        rounds: Number of rounds.
        epsilon: Largest budget of a client; None if nobody stated one.
        delta: Largest δ of a budget; None if nobody stated one.
        names: Names and addresses of the gateway, besides its own.
    """

    mode: Mode
    clients: int
    rounds: int
    epsilon: float | None = None
    delta: float | None = None
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check what can be checked before anything is made."""
        if not self.mode.is_private:
            raise UserError(
                "COINFLOWER_MODE = 'none' protects nothing, and this cluster keeps budgets; choose "
                "another mode."
            )
        if self.epsilon is not None:
            validation.require_epsilon(self.epsilon)
        if self.delta is not None:
            validation.require_delta(self.delta)

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Options:
        """Return the options that environment variables state.

        ``COINFLOWER_MODE``, ``COINFLOWER_CLIENTS``, ``COINFLOWER_ROUNDS``, ``COINFLOWER_EPSILON``
        and ``COINFLOWER_DELTA`` (every client's budget), and ``COINFLOWER_NAMES`` (further names of
        the gateway, with commas between).

        Raises:
            ValueError: Naming the variable and what is wrong with it.
        """
        names = environment.get("COINFLOWER_NAMES", "").split(",")
        return cls(
            mode=parse_mode(environment.get("COINFLOWER_MODE", "trusted")),
            clients=_count(environment, "COINFLOWER_CLIENTS", OWN_CLIENTS),
            rounds=_count(environment, "COINFLOWER_ROUNDS", 1),
            epsilon=_number(environment, "COINFLOWER_EPSILON"),
            delta=_number(environment, "COINFLOWER_DELTA"),
            names=tuple(name.strip() for name in names if name.strip()),
        )


def _count(environment: Mapping[str, str], name: str, least: int) -> int:
    text = environment.get(name, "")
    if not text.isdigit() or int(text) < least:
        raise UserError(f"{name} = {text!r} must be a whole number of at least {least}.")
    return int(text)


def _number(environment: Mapping[str, str], name: str) -> float | None:
    text = environment.get(name, "").strip()
    try:
        return float(text) if text else None
    except ValueError:
        raise UserError(f"{name} = {text!r} must be a number, such as 0.5.") from None
