"""A data owner in an experiment: its policy, its ledger, its coin, its gradient.

Knows nothing of Flower. Everything it says is either public or protected: a charge is on disk
before a coin's outcome is returned, and in mode ``untrusted`` the work, the shape and the size of
an answer do not depend on the coin.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from accounting.ledger import BudgetExceededError, Ledger
from accounting.ledger_file import LedgerError
from client.data import LocalData, load_local_data
from learning import (
    Randomness,
    SecureRandom,
    SeededRandom,
    build_model,
    clipped_gradient_sum,
    count_parameters,
    load_parameters,
    to_tensor,
)
from protocol.policy import Policy, Refusal, RefusedError, load_policy
from protocol.terms import Terms

Vector = npt.NDArray[np.float32]

logger = logging.getLogger("coinflower.client")


class UnansweredError(Exception):
    """This message gets no answer; the text is for the owner's log only."""


class Participant:
    """One client. Messages are handled one at a time.

    Args:
        policy: What the owner allows.
        ledger: The data set's ledger.
        data: The owner's samples.
        randomness: Where samples and noise come from (coins come from the ledger).
    """

    def __init__(
        self, policy: Policy, ledger: Ledger, data: LocalData, randomness: Randomness
    ) -> None:
        self.policy = policy
        self.ledger = ledger
        self._data = data
        self._randomness = randomness
        self._models: dict[tuple[str, int], nn.Module] = {}
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
        ledger = Ledger.open(policy.ledger, data_set=policy.data_set, coins=randomness)
        return cls(policy, ledger, data, randomness)

    def enrol(self, terms: Terms) -> int:
        """Agree to the terms and return the declared size, or refuse.

        Raises:
            RefusedError: With what may be told to the server.
        """
        self.policy.require(terms)
        try:
            self._model(terms)
        except ValueError as error:
            raise RefusedError(Refusal.MODEL, str(error)) from error
        cost = terms.round_cost(self.policy.declared_size)
        if cost is not None:
            try:
                self.ledger.commit(terms.ledger_key, cost, terms.rounds, self.policy.budget)
            except BudgetExceededError as error:
                raise RefusedError(Refusal.BUDGET, str(error)) from error
            except LedgerError as error:
                raise RefusedError(Refusal.LEDGER, str(error)) from error
        logger.info("Enrolled in %s: %s", terms.ledger_key, terms.to_json())
        return self.policy.declared_size

    def flip(self, terms: Terms, rounds: Sequence[int]) -> list[bool]:
        """Return the coins of the rounds, each charged on disk first and flipped once only.

        Raises:
            RefusedError: The terms are not those of the policy.
            LedgerError: Not enrolled, or the charge could not be made durable.
            UnansweredError: Rounds outside of the experiment, or coins that nobody may see.
        """
        self.policy.require(terms)
        if terms.mode.answers_always:
            raise UnansweredError(f"mode {terms.mode} reveals no coins")
        return self._coins(terms, rounds)

    def gradient_sum(self, terms: Terms, round_: int, weights: Vector) -> Vector:
        """Return the sum of clipped gradients of a fresh Poisson sample, once a round.

        Raises:
            RefusedError: The terms are not those of the policy.
            LedgerError: Not enrolled, or the charge could not be made durable.
            UnansweredError: The coin said no (in a mode that lets it show), the round was answered
                before, or the model cannot be used.
        """
        self.policy.require(terms)
        model = self._model(terms)
        if weights.shape != (count_parameters(model),) or weights.dtype != np.float32:
            raise UnansweredError(f"a model of shape {weights.shape}, {weights.dtype} came")
        if not np.isfinite(weights).all():
            raise UnansweredError("a model with values that are not finite came")
        (takes_part,) = self._coins(terms, [round_])
        if not takes_part and not terms.mode.answers_always:
            raise UnansweredError(f"round {round_} was asked though its coin said no")
        if not self._claim(terms, round_):
            raise UnansweredError(f"round {round_} was answered before")
        # The same work for either coin: sampling and gradients first, then keep or drop them.
        total = self._sampled_sum(terms, model, weights)
        total *= np.float32(takes_part)
        if terms.mode.client_adds_noise:
            total += self._randomness.normal(total.size, terms.noise_std)
        return total

    def _coins(self, terms: Terms, rounds: Sequence[int]) -> list[bool]:
        if not all(1 <= round_ <= terms.rounds for round_ in rounds):
            raise UnansweredError(f"rounds {list(rounds)} are not all in 1 to {terms.rounds}")
        if terms.mode.is_private:
            return self.ledger.charge_all(terms.ledger_key, rounds)
        return [self._public_coin(terms, round_) for round_ in rounds]

    def _public_coin(self, terms: Terms, round_: int) -> bool:
        """Without privacy nothing is charged, but a coin is still flipped once only."""
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
        inputs = to_tensor(self._data.inputs[rows])
        targets = torch.from_numpy(self._data.targets[rows])
        total: Vector = clipped_gradient_sum(model, inputs, targets, terms.clip_norm).numpy()
        return total

    def _model(self, terms: Terms) -> nn.Module:
        key = (terms.model, terms.classes)
        if key not in self._models:
            model = build_model(terms.model, classes=terms.classes)
            if self._data.targets.max(initial=0) >= terms.classes:
                raise ValueError(f"the data has classes beyond the model's {terms.classes}")
            # A trial on one row shows now, not in a round, that model and data fit together.
            clipped_gradient_sum(
                model,
                to_tensor(self._data.inputs[:1]),
                torch.from_numpy(self._data.targets[:1]),
                terms.clip_norm,
            )
            self._models[key] = model
        return self._models[key]
