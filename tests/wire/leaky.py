"""Clients as they are shipped, and some with a fault that tells their coin.

The faulty ones show that the observers would find a fault. All of them, the honest ones too, work
on a machine whose gradients take a while, so that there is something to see if they are skipped.
"""

import time

import numpy as np

from coinflower.accounting.ledger.echo import NO_TOKEN
from coinflower.client.participant import Participant
from coinflower.learning import FixedPoint, SeededRandom, add_noise, count_parameters, fine_cell

WORK_SECONDS = 0.3


class Honest(Participant):
    """The shipped client on a slow machine."""

    work_seconds = WORK_SECONDS

    def __init__(self, *parts):
        super().__init__(*parts)
        compute = self._gradients.sampled_sum
        self._gradients.sampled_sum = lambda *asked: self._work(compute, *asked)

    def _work(self, compute, *asked):
        time.sleep(self.work_seconds)
        return compute(*asked)


class Slower(Honest):
    """The shipped client on a machine that is slower still."""

    work_seconds = 2 * WORK_SECONDS


class Curious(Participant):
    """Takes part in every round and is done at once: a round lasts as long as the others need."""

    def flip(self, terms, rounds):
        return [True for _ in super().flip(terms, rounds)]

    def gradient_sum(self, _terms, _round, content):
        return np.zeros(len(content) // 4, np.float32)


class _KnowsItsCoin(Honest):
    takes_part = True

    def _coins(self, terms, rounds):
        coins = super()._coins(terms, rounds)
        self.takes_part = coins[-1]
        return coins


class EarlyReply(_KnowsItsCoin):
    """Skips the gradient when its coin says no, as a thrifty programmer would."""

    def _work(self, compute, terms, model):
        if not self.takes_part:
            return np.zeros(count_parameters(model), np.float32)
        return super()._work(compute, terms, model)


class SlowEarlyReply(EarlyReply):
    """Does so although all others wait for it."""

    work_seconds = 3 * WORK_SECONDS


class SharedFiller(_KnowsItsCoin):
    """Sends the same noise whenever its coin says no: its filler has a fixed seed."""

    def gradient_sum(self, terms, round_, content):
        total = super().gradient_sum(terms, round_, content)
        if self.takes_part:
            return total
        nothing = FixedPoint(total.size, fine_cell(terms.clip_norm))
        return add_noise(nothing, terms.noise_std, SeededRandom(0))


class BareFiller(_KnowsItsCoin):
    """Sends noise that was never rounded to the lattice when its coin says no."""

    def gradient_sum(self, terms, round_, content):
        total = super().gradient_sum(terms, round_, content)
        if self.takes_part:
            return total
        return self._randomness.normal(total.size, terms.noise_std).astype(np.float32)


class SharedMask(_KnowsItsCoin):
    """Sends the same masked numbers again whenever its coin says no: it has nothing new to say."""

    kept = None

    def masked_sum(self, terms, round_, content, vouchers):
        numbers, ticket = super().masked_sum(terms, round_, content, vouchers)
        if self.takes_part:
            return numbers, ticket
        self.kept = self.kept or numbers
        return self.kept, ticket


class NoEcho(_KnowsItsCoin):
    """Tells the notary nothing of its ledger when its coin says no."""

    def __init__(self, *parts):
        super().__init__(*parts)
        self._masked._ledger = _Reticent(self)


class _Reticent:
    def __init__(self, client):
        self._client = client

    def __getattr__(self, name):
        return getattr(self._client.ledger, name)

    def echo(self):
        return self._client.ledger.echo() if self._client.takes_part else NO_TOKEN


KINDS = {
    "honest": Honest,
    "slower": Slower,
    "curious": Curious,
    "early reply": EarlyReply,
    "slowest's early reply": SlowEarlyReply,
    "shared filler": SharedFiller,
    "bare filler": BareFiller,
    "shared mask": SharedMask,
    "no echo": NoEcho,
}
