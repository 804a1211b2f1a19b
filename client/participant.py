"""A data owner in an experiment: its policy, its ledger, its coin, its gradient.

It knows nothing of Flower. Everything it says is either public or protected: a charge is on disk
before a coin's outcome is returned, and where everybody always answers, the work, the shape and the
size of an answer do not depend on the coin.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from torch import nn

from coinflower.accounting.ledger import stops as ledger_stops
from coinflower.accounting.ledger.errors import SetBackError
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.client.agreements import Agreements
from coinflower.client.data import load_local_data
from coinflower.client.gradient_sums import GradientSums, Vector
from coinflower.client.masked import MaskedAnswers
from coinflower.client.model import ModelRules
from coinflower.client.node.private_key import load_private_key
from coinflower.learning import (
    Randomness,
    Records,
    SecureRandom,
    SeededRandom,
    count_parameters,
    device_of,
    fine_cell,
    load_parameters,
    make_noisy,
)
from coinflower.learning.data.tables.schema import load_schema
from coinflower.protocol.messages import vector_from_bytes
from coinflower.protocol.policy import Policy, Refusal, RefusedError, load_policy
from coinflower.protocol.terms import Terms

logger = logging.getLogger("coinflower.client")


class UnansweredError(Exception):
    """This message gets no answer; the text is for the owner's log only."""


class Participant:
    """One client. Its gradients are computed one at a time.

    Args:
        policy: What the owner allows.
        ledger: The data set's ledger.
        data: The owner's records.
        randomness: Where samples and noise come from (coins come from the ledger).
        key: The owner's key, which mode masked needs.

    Attributes:
        current: The terms of the experiment that was last heard of and agreed to.
    """

    def __init__(
        self,
        policy: Policy,
        ledger: Ledger,
        data: Records,
        randomness: Randomness,
        key: ec.EllipticCurvePrivateKey | None = None,
    ) -> None:
        self.policy = policy
        self.ledger = ledger
        self.current: Terms | None = None
        self._randomness = randomness
        self._agreements = Agreements(policy, ledger)
        schema = None if policy.schema is None else load_schema(policy.schema)
        rules = ModelRules.of(policy)
        self._gradients = GradientSums(data, randomness, rules, policy.unit, schema)
        self._masked = MaskedAnswers(policy, ledger, key)
        self._working = threading.Lock()
        self._public_coins: dict[tuple[str, int], bool] = {}
        self._public_answers: set[tuple[str, int]] = set()

    @classmethod
    def open(cls, policy_path: Path, *, device: str | None = None) -> Participant:
        """Read policy, data and ledger; any of them out of order is an error.

        Args:
            policy_path: The policy.
            device: Where gradients are computed, instead of the policy's.

        Raises:
            ValueError: Policy or data cannot be used, or there is no such device.
            LedgerError: The ledger is missing, damaged or another data set's.
        """
        policy = load_policy(policy_path)
        policy = policy if device is None else replace(policy, device=device)
        device_of(policy.device)  # before data is read, which may take long
        randomness: Randomness = SecureRandom()
        if policy.insecure_seed is not None:
            logger.warning("INSECURE: coins, samples and noise are seeded by the policy.")
            randomness = SeededRandom(policy.insecure_seed)
        key = None if policy.signing_key is None else load_private_key(policy.signing_key)
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
        return cls(policy, ledger, data, randomness, key)

    def heed(self, echo: object) -> None:
        """Stop for good if the ledger lacks an entry that a server has seen before.

        Raises:
            RefusedError: The ledger was set back.
        """
        try:
            self.ledger.heed(echo)
        except SetBackError as error:
            raise _stopped(error) from error

    def echo(self) -> bytes:
        """Return what a server is to send back with its next question."""
        return self.ledger.echo()

    def enrol(self, terms: Terms) -> int:
        """Agree to the terms and return the declared size, or refuse.

        Raises:
            RefusedError: With what the server may be told.
        """
        self.policy.require(terms)
        if terms.mode.masks_sums:
            self._masked.require(terms)
        self._require_going(terms)
        with self._working:
            try:
                self._gradients.model_of(terms)
            except RefusedError:
                raise
            except Exception as error:  # the owner's model may fail in any way
                raise RefusedError(Refusal.MODEL, str(error)) from error
        if terms.mode.is_private:
            self._agreements.reserve(terms)
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
                before, the model cannot be used, or nothing may leave without a mask.
        """
        self.policy.require(terms)
        if terms.mode.masks_sums:
            raise UnansweredError(f"mode {terms.mode} sends no sum without a mask")
        with self._working:
            model = self._loaded_model(terms, content)
            del content  # as large as the model
            total = self._claimed_sum(terms, round_, model)
            if terms.mode.client_adds_noise:
                cell = fine_cell(terms.clip_norm)
                make_noisy(total, cell, terms.noise_std, self._randomness)
            return total

    def request(self, terms: Terms) -> bytes:
        """Return what the notaries of the terms are to be asked, now that this client enrolled."""
        return self._masked.request(terms)

    def masked_sum(
        self, terms: Terms, round_: int, content: object, vouchers: object
    ) -> tuple[bytes, bytes]:
        """Return the sum with a share of the noise under a mask, and the notaries' ticket, once.

        Args:
            terms: What was agreed to.
            round_: Which round.
            content: The model's weights as they travel.
            vouchers: What the notaries answered to `request`.

        Raises:
            RefusedError: As `gradient_sum`, or a notary knows that the ledger was set back.
            LedgerError: As `gradient_sum`.
            UnansweredError: As `gradient_sum`, or a notary has not vouched for the ledger.
        """
        self.policy.require(terms)
        if not terms.mode.masks_sums:
            raise UnansweredError(f"mode {terms.mode} knows no masks")
        with self._working:
            try:
                self._masked.heed(terms, vouchers)
            except SetBackError as error:
                raise _stopped(error) from error
            except ValueError as error:
                raise UnansweredError(str(error)) from error
            model = self._loaded_model(terms, content)
            del content  # as large as the model
            total = self._claimed_sum(terms, round_, model)
            return self._masked.hide(terms, round_, total, self._randomness)

    def _loaded_model(self, terms: Terms, content: object) -> nn.Module | None:
        """Return the model as it was sent; None for statistics, whatever came with them."""
        model = self._gradients.model_of(terms)
        if model is None:
            return None
        try:
            load_parameters(model, vector_from_bytes(content, count_parameters(model)))
        except ValueError as error:
            raise UnansweredError(f"a model that cannot be used: {error}") from error
        return model

    def _claimed_sum(self, terms: Terms, round_: int, model: nn.Module | None) -> Vector:
        """Return the bare sum of a round, zeros if its coin said no; never twice.

        It must not leave this client unless the mode trusts the server with it.
        """
        (takes_part,) = self._coins(terms, [round_])
        if not takes_part and not terms.mode.answers_always:
            raise UnansweredError(f"round {round_} was asked for although its coin said no")
        if not self._claim(terms, round_):
            raise UnansweredError(f"round {round_} was answered before")
        # Do the same work for either coin: sample and compute first, then keep or drop the sum.
        total = self._gradients.sampled_sum(terms, model)
        bits = total.view(np.uint32)
        bits &= np.uint32(0xFFFFFFFF if takes_part else 0)
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
        logger.warning("Left %s, as the owner asked.", experiment)

    def _require_going(self, terms: Terms) -> None:
        """Refuse what the owner stopped, and files that end before the data does.

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
        self._gradients.data.require_whole()

    def _coins(self, terms: Terms, rounds: Sequence[int]) -> list[bool]:
        if not all(1 <= round_ <= terms.rounds for round_ in rounds):
            raise UnansweredError(f"rounds {rounds} are not all in 1 to {terms.rounds}")
        self._require_going(terms)
        if terms.mode.is_private:
            self._agreements.require(terms)
            coins = self.ledger.flip_all(terms.ledger_key, rounds)
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


def _stopped(error: SetBackError) -> RefusedError:
    logger.error("STOPPED: %s", error)
    return RefusedError(Refusal.SET_BACK, str(error))


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
