"""A data owner in an experiment: its policy, its ledger, its coin, its gradient.

It knows nothing of Flower. Everything it says is either public or protected: a charge is on disk
before a coin's outcome is returned, and in modes ``untrusted`` and ``covered`` the work, the shape
and the size of an answer do not depend on the coin.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from coinflower.accounting import patience
from coinflower.accounting.ledger import stops as ledger_stops
from coinflower.accounting.ledger.file import LedgerError
from coinflower.accounting.ledger.ledger import BudgetExceededError, Ledger
from coinflower.accounting.ledger.testimony import SetBackError
from coinflower.accounting.rounding import rounded_up
from coinflower.client.data import LocalData, load_local_data
from coinflower.client.model import build_fitting_model
from coinflower.learning import (
    FixedPoint,
    Randomness,
    SecureRandom,
    SeededRandom,
    add_noise,
    clipped_gradient_sum,
    count_parameters,
    fine_cell,
    load_parameters,
    to_tensor,
)
from coinflower.protocol.messages import vector_from_bytes
from coinflower.protocol.policy import Policy, Refusal, RefusedError, load_policy
from coinflower.protocol.terms import Terms

Vector = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]

logger = logging.getLogger("coinflower.client")

# A budget that was lowered since an experiment was enrolled stops it; rounding does not.
_BUDGET_TOLERANCE = 1e-6


class UnansweredError(Exception):
    """This message gets no answer; the text is for the owner's log only."""


class Participant:
    """One client. Its gradients are computed one at a time.

    Args:
        policy: What the owner allows.
        ledger: The data set's ledger.
        data: The owner's records.
        randomness: Where samples and noise come from (coins come from the ledger).

    Attributes:
        current: The terms of the experiment that was last heard of and agreed to.
    """

    def __init__(
        self, policy: Policy, ledger: Ledger, data: LocalData, randomness: Randomness
    ) -> None:
        self.policy = policy
        self.ledger = ledger
        self.current: Terms | None = None
        self._data = data
        self._randomness = randomness
        self._working = threading.Lock()
        self._model_name: tuple[str, int] | None = None
        self._model: nn.Module | None = None
        self._agreed: set[str] = set()
        self._public_coins: dict[tuple[str, int], bool] = {}
        self._public_answers: set[tuple[str, int]] = set()

    @classmethod
    def open(cls, policy_path: Path) -> Participant:
        """Read policy, data and ledger; any of them out of order is an error.

        Raises:
            ValueError: Policy or data cannot be used.
            LedgerError: The ledger is missing, damaged or another data set's.
        """
        policy = load_policy(policy_path)
        randomness: Randomness = SecureRandom()
        if policy.insecure_seed is not None:
            logger.warning("INSECURE: coins, samples and noise are seeded by the policy.")
            randomness = SeededRandom(policy.insecure_seed)
        data = load_local_data(policy)
        ledger = Ledger.open(
            policy.ledger, data_set=policy.data_set, coins=randomness, witness=policy.witness
        )
        stops = ledger_stops.read_stops(policy.ledger)
        for name in stops.left:
            _release(ledger, name)  # in case that leaving was cut short
        if stops.set_back_since:
            logger.error("STOPPED: %s", _set_back(policy.ledger, stops.set_back_since))
        if stops.paused_since:
            logger.warning("PAUSED since %s: no coin is flipped.", stops.paused_since)
        return cls(policy, ledger, data, randomness)

    def heed(self, echo: object) -> None:
        """Stop for good if the ledger lacks an entry that a server has seen before.

        Raises:
            RefusedError: The ledger was set back.
        """
        try:
            self.ledger.heed(echo)
        except SetBackError as error:
            logger.error("STOPPED: %s", error)
            raise RefusedError(Refusal.SET_BACK, str(error)) from error

    def echo(self) -> bytes:
        """Return what a server is to send back with its next question."""
        return self.ledger.echo()

    def enrol(self, terms: Terms) -> int:
        """Agree to the terms and return the declared size, or refuse.

        Raises:
            RefusedError: With what may be told to the server.
        """
        self.policy.require(terms)
        self._require_going(terms)
        with self._working:
            try:
                self._model_of(terms)
            except RefusedError:
                raise
            except Exception as error:  # the owner's model may fail in any way
                raise RefusedError(Refusal.MODEL, str(error)) from error
        if terms.mode.is_private:
            self._commit(terms)
        else:
            logger.warning("NO PRIVACY: mode none protects nothing and charges nothing.")
        self.current = terms
        logger.info("Enrolled in %s: %s", terms.ledger_key, terms.to_json())
        return self.policy.declared_size

    def flip(self, terms: Terms, rounds: Sequence[int]) -> list[bool]:
        """Return the coins of the rounds, each charged on disk first and flipped only once.

        Raises:
            RefusedError: The terms are not those of the policy, or the owner stopped it.
            LedgerError: Not enrolled, or the charge could not be made durable.
            UnansweredError: Rounds outside the experiment, or coins that nobody may see.
        """
        self.policy.require(terms)
        if terms.mode.answers_always:
            raise UnansweredError(f"mode {terms.mode} reveals no coins")
        return self._coins(terms, rounds)

    def gradient_sum(self, terms: Terms, round_: int, content: object) -> Vector:
        """Return the sum of clipped gradients of a fresh Poisson sample, once per round.

        Args:
            terms: What was agreed to.
            round_: Which round.
            content: The model's weights as they travel.

        Raises:
            RefusedError: The terms are not those of the policy, or the owner stopped it.
            LedgerError: Not enrolled, or the charge could not be made durable.
            UnansweredError: The coin said no (in a mode that lets it show), the round was answered
                before, or the model cannot be used.
        """
        self.policy.require(terms)
        with self._working:
            model = self._model_of(terms)
            try:
                weights = vector_from_bytes(content, count_parameters(model))
            except ValueError as error:
                raise UnansweredError(f"a model that cannot be used: {error}") from error
            (takes_part,) = self._coins(terms, [round_])
            if not takes_part and not terms.mode.answers_always:
                raise UnansweredError(f"round {round_} was asked though its coin said no")
            if not self._claim(terms, round_):
                raise UnansweredError(f"round {round_} was answered before")
            # Do the same work for either coin: sample and compute first, then keep or drop the sum.
            total = self._sampled_sum(terms, model, weights)
            total = np.where(takes_part, total, np.float32(0))
            if terms.mode.client_adds_noise:
                counted = FixedPoint.of(total, fine_cell(terms.clip_norm))
                total = add_noise(counted, terms.noise_std, self._randomness)
            return total

    def pause(self) -> None:
        """Flip no coin and answer nothing from now on, even after a restart.

        Rounds whose coins a server already knows stay charged and go unanswered.
        """
        ledger_stops.pause(self.policy.ledger)
        logger.warning("PAUSED by the owner: no coin is flipped.")

    def resume(self) -> None:
        """Continue after a pause."""
        ledger_stops.resume(self.policy.ledger)
        logger.warning("Resumed by the owner.")

    def leave(self, experiment: str) -> None:
        """Leave an experiment for good, whatever its terms, and give back its unplayed rounds."""
        ledger_stops.leave(self.policy.ledger, experiment)
        _release(self.ledger, ledger_stops.name_of(experiment))
        logger.warning("Left %s by the owner's wish.", experiment)

    def _require_going(self, terms: Terms) -> None:
        """Refuse what the owner stopped.

        In a private mode the ledger checks again, in the transaction that flips the coin.
        """
        stops = ledger_stops.read_stops(self.policy.ledger)
        if stops.set_back_since:
            detail = _set_back(self.policy.ledger, stops.set_back_since)
            raise RefusedError(Refusal.SET_BACK, detail)
        if terms.experiment in stops.left:
            since = stops.left[terms.experiment]
            raise RefusedError(Refusal.LEFT, f"the owner left {terms.experiment} at {since}")
        if stops.paused_since:
            raise RefusedError(Refusal.PAUSED, f"the owner paused at {stops.paused_since}")

    def _commit(self, terms: Terms) -> None:
        """Reserve the planned rounds in the ledger, or refuse."""
        self._require_room(terms)
        try:
            cost = terms.round_cost(self.policy.declared_size)
            assert cost is not None
            with patience.at_most(self.policy.pricing_seconds):
                self.ledger.commit(
                    terms.ledger_key,
                    cost,
                    terms.rounds,
                    self.policy.budget,
                    agreed=terms.to_json(),
                )
                self._require_agreement(terms)
        except patience.OutOfPatienceError as error:
            detail = f"{error}: more than pricing_seconds = {self.policy.pricing_seconds:g}"
            raise RefusedError(Refusal.PRICE, detail) from error
        except BudgetExceededError as error:
            raise RefusedError(Refusal.BUDGET, str(error)) from error
        except LedgerError as error:
            raise RefusedError(Refusal.LEDGER, str(error)) from error
        except (ArithmeticError, ValueError) as error:
            raise RefusedError(Refusal.TERMS, f"these terms have no price: {error}") from error

    def _require_room(self, terms: Terms) -> None:
        """Refuse one experiment more than the owner allows, in all or at a time."""
        others = [each for each in self.ledger.tallies() if each.experiment != terms.ledger_key]
        unplayed = sum(each.charged < each.committed for each in others)
        for what, count, most in (
            ("most_experiments", len(others), self.policy.most_experiments),
            ("most_open_experiments", unplayed, self.policy.most_open_experiments),
        ):
            if not count < most:
                detail = f"{count} experiments are in the ledger, and {what} = {most}"
                raise RefusedError(Refusal.EXPERIMENTS, detail)

    def _require_agreement(self, terms: Terms) -> None:
        """Refuse rounds that the ledger would charge differently from the current policy.

        Between enrolment and a round the owner may have edited the policy: a larger declared size
        makes a round cost more than what is recorded, and a smaller budget may be used up.

        Raises:
            LedgerError: Not enrolled, or enrolled at another price.
            BudgetExceededError: The policy's budget is smaller than what is committed.
        """
        key = terms.ledger_key
        if key in self._agreed:
            return
        prices = {tally.experiment: tally.terms for tally in self.ledger.tallies()}
        if prices.get(key) != terms.round_cost(self.policy.declared_size):
            raise LedgerError(f"{key} is not enrolled at the price that the policy implies.")
        budget = self.policy.budget
        committed = self.ledger.committed(budget.delta)
        if not committed <= budget.epsilon * (1 + _BUDGET_TOLERANCE):
            raise BudgetExceededError(
                f"epsilon = {rounded_up(committed, 6)} is committed at delta = "
                f"{budget.delta:g}, but the policy's budget is {budget.epsilon:g} now."
            )
        self._agreed.add(key)

    def _coins(self, terms: Terms, rounds: Sequence[int]) -> list[bool]:
        if not all(1 <= round_ <= terms.rounds for round_ in rounds):
            raise UnansweredError(f"rounds {rounds} are not all in 1 to {terms.rounds}")
        self._require_going(terms)
        if terms.mode.is_private:
            with patience.at_most(self.policy.pricing_seconds):
                self._require_agreement(terms)
            coins = self.ledger.charge_all(terms.ledger_key, rounds)
        else:
            coins = [self._public_coin(terms, round_) for round_ in rounds]
        self.current = terms
        return coins

    def _public_coin(self, terms: Terms, round_: int) -> bool:
        """Without privacy nothing is charged, but a coin is still flipped only once."""
        key = (terms.ledger_key, round_)
        if key not in self._public_coins:
            self._public_coins[key] = self._randomness.coin(terms.p)
        return self._public_coins[key]

    def _claim(self, terms: Terms, round_: int) -> bool:
        if terms.mode.is_private:
            return self.ledger.claim_answer(terms.ledger_key, round_)
        key = (terms.ledger_key, round_)
        fresh = key not in self._public_answers
        self._public_answers.add(key)
        return fresh

    def _sampled_sum(self, terms: Terms, model: nn.Module, weights: Vector) -> Vector:
        load_parameters(model, weights)
        rows = self._randomness.sample_indices(len(self._data), terms.q)
        # A label that the model does not know counts as zero: an error would reveal the label.
        rows = rows[self._data.targets[rows] < terms.classes]
        try:
            return self._sum_over(terms, model, rows)
        except Exception:
            if not terms.mode.is_private:
                raise
            logger.exception("A gradient failed; records whose own gradient fails count as zero.")
        if not (terms.mode.client_adds_noise or terms.mode.answers_always):
            self._sum_over(terms, model, rows[:0])  # raises errors that are not due to a record
        return self._sound_sum(terms, model, rows)

    def _sum_over(self, terms: Terms, model: nn.Module, rows: Rows) -> Vector:
        inputs = to_tensor(self._data.inputs[rows])
        targets = torch.from_numpy(self._data.targets[rows])
        total: Vector = clipped_gradient_sum(model, inputs, targets, terms.clip_norm).numpy()
        return total

    def _sound_sum(self, terms: Terms, model: nn.Module, rows: Rows) -> Vector:
        """Return the sum over the rows whose own gradient does not fail.

        One record must not move the sum by more than the clip norm, so a record that fails may
        neither drop the others nor show as an error. Bisection finds it in few attempts.
        """
        try:
            return self._sum_over(terms, model, rows)
        except Exception:
            if len(rows) < 2:
                return np.zeros(count_parameters(model), np.float32)
        middle = len(rows) // 2
        first = self._sound_sum(terms, model, rows[:middle])
        return first + self._sound_sum(terms, model, rows[middle:])

    def _model_of(self, terms: Terms) -> nn.Module:
        """Return the model, reusing the last one if it is the same; a server may name many."""
        name = (terms.model, terms.classes)
        if self._model is None or self._model_name != name:
            most = self.policy.most_parameters
            self._model, self._model_name = build_fitting_model(terms, self._data, most), name
        return self._model


def _set_back(ledger: Path, since: str) -> str:
    return (
        f"The ledger {ledger} was found at {since} to be set back to an older copy. Put the newer "
        "one in its place; if that is lost, count the budget as spent (docs/data-owners.md)."
    )


def _release(ledger: Ledger, name: str) -> None:
    """Give back the unplayed rounds of an experiment, under all terms that it ever had."""
    for tally in ledger.tallies():
        if ledger_stops.name_of(tally.experiment) == name:
            ledger.release(tally.experiment)
