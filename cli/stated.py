"""What a person states on the command line is kept or refused, never silently replaced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource
from typer.core import TyperCommand

from coinflower.accounting import validation
from coinflower.accounting.errors import UserError

if TYPE_CHECKING:
    from coinflower.protocol.policy import Policy

_DEFAULT_DELTA = 1e-5
_BY_A_PERSON = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


class StatedOnce(TyperCommand):
    """A command whose options are stated once: of two values nobody knows which one is meant."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments.

        Raises:
            click.UsageError: An option that takes one value is there twice.
        """
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for parameter, times in Counter(order).items():
            if isinstance(parameter, click.Option) and times > 1 and not parameter.multiple:
                raise click.UsageError(
                    f"{spelled(parameter)} is given {times} times; give it once, since only one "
                    "value can hold.",
                    ctx,
                )
        return super().parse_args(ctx, args)


def stated(context: click.Context) -> dict[str, click.Parameter]:
    """Return the options and arguments that a person stated, by name."""
    return {
        parameter.name: parameter
        for parameter in context.command.params
        if parameter.name and context.get_parameter_source(parameter.name) in _BY_A_PERSON
    }


def refuse_beside(
    context: click.Context, option: str, *, allowed: Collection[str], why: str
) -> None:
    """Refuse whatever is stated beside an option that leaves no room for it.

    Args:
        context: Of the command.
        option: The option, as a person writes it.
        allowed: Names of the parameters that go together with it.
        why: Why the others do not, as half a sentence.

    Raises:
        ValueError: Naming everything that has to be left out.
    """
    wrong = [spelled(part) for name, part in stated(context).items() if name not in allowed]
    if wrong:
        raise UserError(f"{option} {why}; leave out {', '.join(wrong)}.")


def delta_of(policy: Policy | None, delta: float | None) -> float:
    """Return the δ at which to state ε: the policy's, else the one stated, else 1e-5.

    Raises:
        UserError: Both are stated and differ: a budget holds at its own δ only.
    """
    if delta is not None:
        validation.require_delta(delta)
    if policy is None:
        return _DEFAULT_DELTA if delta is None else delta
    if delta not in (None, policy.budget.delta):
        raise UserError(f"The budget is at delta = {policy.budget.delta:g}; leave out --delta.")
    return policy.budget.delta


def spelled(parameter: click.Parameter) -> str:
    """Return an option as a person writes it."""
    return "/".join([*parameter.opts, *parameter.secondary_opts])
