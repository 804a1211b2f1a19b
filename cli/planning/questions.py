"""The questions of `coinflower plan --interactive`: asked until the answer can be used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
import typer

from coinflower.accounting import validation
from coinflower.accounting.errors import UserError
from coinflower.protocol.modes import PRIVATE_MODES, Mode, parse_mode
from coinflower.protocol.planning.choices import Choice
from coinflower.protocol.planning.planner import (
    ACCURACY,
    PRIVACY,
    Wishes,
    batch_for,
    suggested_delta,
)
from coinflower.protocol.unit import Unit

Answer = TypeVar("Answer")


def ask_for_missing(given: dict[str, Any], unit: Unit) -> dict[str, Any]:
    """Ask, in the order in which people know the answers.

    Args:
        given: What need not be asked, and None for what must.
        unit: What is protected.
    """
    found = dict(given)

    def ask(key: str, question: str, default: object, parse: Callable[[str], object]) -> None:
        if found[key] is None:
            found[key] = _ask(question, default, parse)

    ask("clients", "How many clients", 10, lambda text: _count("clients", text))
    ask(
        "d",
        f"How many {unit}s does the largest client have",
        500,
        lambda text: _count(f"{unit}s", text),
    )
    ask("rounds", "How many rounds", 100, lambda text: _count("rounds", text))
    modes = "; ".join(f"{each} ({each.facts.noise})" for each in PRIVATE_MODES)
    question = f"Who adds noise: {modes}"
    ask("mode", question, "trusted", _private_mode)
    if not found["mode"].flips_coins and found["largest_p"] is None:
        found["largest_p"] = 1.0
    question = "Largest share of rounds that a client may take part in (0.5 is every other round)"
    ask("largest_p", question, 0.5, lambda text: _share("the share", text))
    levels = ", ".join(f"{name} (ε = {value:g})" for name, value in PRIVACY.items())
    ask("epsilon", f"How private: {levels}, or ε as a number", "balanced", _privacy)
    delta = suggested_delta(found["clients"], found["d"])
    ask("delta", f"δ (well below one over the number of all {unit}s)", f"{delta:g}", _delta)
    return found


def ask_for_batch(wishes: Wishes, found: list[Choice]) -> float:
    """Ask how accurate the model is to be, and return the mean batch for it.

    Args:
        wishes: What is wished for.
        found: The batches to choose from.
    """
    question = f"How accurate: {', '.join(ACCURACY)}, or the mean number of records in a round"
    answer = _ask(question, "balanced", lambda text: _accuracy(text, wishes.largest_batch))
    return batch_for(found, answer) if isinstance(answer, str) else answer


def _ask(question: str, default: object, parse: Callable[[str], Answer]) -> Answer:
    """Ask until the answer can be used; a bad one gets a sentence that says why."""

    def convert(text: str) -> Answer:
        try:
            return parse(text.strip())
        except ValueError as error:
            raise click.UsageError(str(error)) from None

    answer: Answer = typer.prompt(question, default=str(default), value_proc=convert, err=True)
    return answer


def _count(field: str, text: str) -> int:
    try:
        value = int(text.replace(",", ""))
    except ValueError:
        raise UserError(
            f"{field} = {text!r} is not a whole number; give one, such as 100."
        ) from None
    validation.require_count(field, value, least=1)
    return value


def _number(text: str, example: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{text!r} is not understood; give {example}.") from None


def _share(field: str, text: str) -> float:
    value = _number(text, "a number above 0 and up to 1, such as 0.5")
    validation.require_probability(field, value)
    return value


def _delta(text: str) -> float:
    value = _number(text, "a small number, such as 1e-5")
    validation.require_delta(value)
    return value


def _privacy(text: str) -> float:
    value = PRIVACY.get(text) or _number(text, f"{', '.join(PRIVACY)} or a number, such as 2.5")
    validation.require_positive("epsilon", value)
    return value


def _accuracy(text: str, largest_batch: float) -> str | float:
    if text in ACCURACY:
        return text
    value = _number(text, f"{', '.join(ACCURACY)} or a number, such as 64")
    validation.require_positive("batch", value)
    if value > largest_batch:
        raise UserError(
            f"batch = {value:g} is more than the {largest_batch:g} records that take part on "
            "average; choose a smaller batch."
        )
    return value


def _private_mode(text: str) -> Mode:
    mode = parse_mode(text)
    if not mode.is_private:
        raise UserError("mode = 'none' protects nothing; choose another.")
    return mode
