"""A client's side of mode masked: its key, what it asks of notaries, and the masks of its sums."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from coinflower.accounting.ledger.echo import NAME_BYTES, NO_TOKEN
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.learning import FixedPoint, Randomness, fine_cell, noisy_counts
from coinflower.masking.masks import add_masks, wrapped
from coinflower.masking.sealing import SealError, public_bytes
from coinflower.masking.tickets import Occasion, owner_name, write_ticket
from coinflower.masking.vouchers import VOUCHER_BYTES, read_voucher, write_request
from coinflower.protocol.policy import Policy, Refusal, RefusedError
from coinflower.protocol.terms import Terms

Vector = npt.NDArray[np.float32]


class MaskedAnswers:
    """Hides one owner's sums, once notaries have vouched for its ledger.

    Args:
        policy: What the owner allows.
        ledger: The data set's ledger.
        key: The owner's, which signs tickets; None refuses the mode.
    """

    def __init__(
        self, policy: Policy, ledger: Ledger, key: ec.EllipticCurvePrivateKey | None
    ) -> None:
        self._policy = policy
        self._ledger = ledger
        self._key = key
        self._lock = threading.Lock()
        self._asked: dict[str, tuple[X25519PrivateKey, bytes]] = {}
        self._vouched: set[str] = set()

    def require(self, terms: Terms) -> None:
        """Refuse terms under which nothing could be answered.

        Raises:
            RefusedError: There is no key, nothing can be sealed to a notary's, or the ring cannot
                hold as many sums like this client's as the threshold says.
        """
        try:
            write_ticket(Occasion.of(terms, 0), self._own_key(), NO_TOKEN)
        except SealError as error:
            raise RefusedError(Refusal.NOTARY, str(error)) from error
        longest = terms.longest_sum(self._policy.declared_size)
        try:
            needed = terms.noise_shares.ring_bits(clients=terms.threshold or 1, longest=longest)
        except ValueError as error:
            raise RefusedError(Refusal.RING, str(error)) from error
        if not needed <= (terms.ring_bits or 0):
            raise RefusedError(Refusal.RING, f"ring_bits = {terms.ring_bits} < {needed}")

    def request(self, terms: Terms) -> bytes:
        """Return what to ask of the notaries, anew at each enrolment."""
        challenge = X25519PrivateKey.generate()
        request = write_request(
            owner_name(self._own_key().public_key()),
            self._ledger.echo()[:NAME_BYTES],
            public_bytes(challenge),
        )
        with self._lock:
            self._vouched.discard(terms.ledger_key)
            self._asked[terms.ledger_key] = (challenge, request)
        return request

    def heed(self, terms: Terms, vouchers: object) -> None:
        """Go on only if every notary has vouched for the ledger since this client enrolled.

        Raises:
            SetBackError: The ledger lacks an entry that a notary has seen.
            ValueError: A notary has not vouched.
        """
        with self._lock:
            if terms.ledger_key in self._vouched:
                return
            if terms.ledger_key not in self._asked:
                raise ValueError("no notary was asked about this ledger; enrol first")
            challenge, request = self._asked[terms.ledger_key]
        notaries = [bytes.fromhex(key) for key in terms.notaries]
        if not isinstance(vouchers, bytes) or len(vouchers) != len(notaries) * VOUCHER_BYTES:
            raise ValueError("the vouchers of the notaries are missing")
        for place, notary in enumerate(notaries):
            voucher = vouchers[place * VOUCHER_BYTES : (place + 1) * VOUCHER_BYTES]
            token = read_voucher(voucher, request, terms.hash, challenge, notary)
            self._ledger.heed(token, "a notary")
        with self._lock:
            self._vouched.add(terms.ledger_key)

    def hide(
        self, terms: Terms, round_: int, total: Vector, randomness: Randomness
    ) -> tuple[bytes, bytes]:
        """Return a sum under noise and mask, and the ticket that lets notaries take off the mask.

        Args:
            terms: What was agreed to.
            round_: Which round; it must be claimed, so that no second mask ever hides it.
            total: The sum, or zeros.
            randomness: Where the noise comes from. Masks are always secure.
        """
        assert terms.ring_bits is not None
        shares = terms.noise_shares
        counted = FixedPoint.of(total, fine_cell(terms.clip_norm))
        noisy = noisy_counts(counted, shares.share_std, shares.cell, randomness)
        numbers = wrapped(noisy, terms.ring_bits)
        ticket, seeds = write_ticket(
            Occasion.of(terms, round_), self._own_key(), self._ledger.echo()
        )
        add_masks(numbers, seeds)
        return numbers.tobytes(), ticket

    def _own_key(self) -> ec.EllipticCurvePrivateKey:
        if self._key is None:
            raise RefusedError(Refusal.NOTARY, "there is no signing_key in this policy")
        return self._key
