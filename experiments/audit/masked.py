"""Mode masked under audit: a notary of the audit's own, and a colluder that tells its share.

The server conspires with as many clients as the terms count on. What these add is known, so that
the noise of h honest shares is all that hides the audited client in an opened sum. Of a message
whose mask nobody takes off it must learn nothing at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.app import ConfigRecord, Message

from coinflower.accounting.ledger.echo import NAME_BYTES, NO_TOKEN
from coinflower.client.participant import Participant
from coinflower.experiments.audit.colluders import Colluder
from coinflower.masking.masks import add_masks, lifted, numbers_from_bytes, zeros
from coinflower.masking.sealing import public_bytes
from coinflower.masking.tickets import Occasion, owner_name, write_ticket
from coinflower.masking.vouchers import write_request, write_voucher
from coinflower.notary.notary import Notary
from coinflower.notary.record import Record
from coinflower.protocol import messages
from coinflower.protocol.masked_terms import masked_fields
from coinflower.protocol.modes import Mode
from coinflower.protocol.terms import Terms

HELPERS = 1
"""Honest clients without data beside the audited one: all of them together are h."""
COLLUDERS = 1
# Nothing in an audit is worth protecting, and its terms must be the same in every process.
_KEY = X25519PrivateKey.from_private_bytes(sha256(b"the notary of an audit").digest())


def seen_in_sums(mode: Mode) -> bool:
    """Return whether an observer sees sums over clients, and no client's own message."""
    return mode.server_adds_noise or mode.masks_sums


def others_of(mode: Mode) -> int:
    """Return how many clients there are beside the audited one, with one record declared each."""
    return HELPERS + COLLUDERS if mode.masks_sums else 0


def fields_for(mode: Mode, sizes: Sequence[int], **terms: float) -> dict[str, Any]:
    """Return what the mode adds to the terms of clients of these sizes.

    Args:
        mode: The mode.
        sizes: Of all clients; every one of them has to answer.
        terms: q, cap, clip norm and noise multiplier.
    """
    if not mode.masks_sums:
        return {}
    return masked_fields(
        sizes=sizes,
        notaries=[public_bytes(_KEY).hex()],
        threshold=len(sizes),
        colluders=COLLUDERS,
        **terms,
    )


def write_key(path: Path) -> None:
    """Write a key for an audited client to sign with."""
    key = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))


def make_notary(folder: Path, owners: Iterable[ec.EllipticCurvePublicKey]) -> Notary:
    """Return the shipped notary with a record in a folder; it allows these owners."""
    folder.mkdir(parents=True, exist_ok=True)
    name, path = public_bytes(_KEY).hex(), folder / "record.db"
    Record.create(path, name)
    allowed = {owner_name(key): key for key in owners}
    return Notary(_KEY, Record.open(path, name), lambda: allowed)


def vouched(participant: Participant, terms: Terms) -> bytes:
    """Return what the notary says of the ledger of a client that has enrolled: nothing yet."""
    return write_voucher(participant.request(terms), terms.hash, NO_TOKEN, _KEY)


def differences(participant: Participant, terms: Terms, weights: bytes) -> npt.NDArray[np.float32]:
    """Return what is left of each message of a client when the one after it is subtracted.

    It is uniformly random if no mask is used twice. No message is part of two differences.

    Args:
        participant: The client, enrolled in the terms.
        terms: Terms with an even number of rounds.
        weights: The model that it is asked about in each, as it travels.
    """
    assert terms.ring_bits is not None
    voucher = vouched(participant, terms)
    sent = []
    for round_ in range(1, terms.rounds + 1):
        numbers, _ = participant.masked_sum(terms, round_, weights, voucher)
        sent.append(numbers_from_bytes(numbers, len(weights) // 4, terms.ring_bits))
    left = [lifted(one - other) for one, other in zip(sent[::2], sent[1::2], strict=True)]
    return (np.stack(left) * terms.noise_shares.cell).astype(np.float32)


class MaskedColluder(Colluder):
    """A client that adds nothing, noise included, and masks that as the protocol wants it.

    Args:
        terms: The terms of the run.
    """

    def __init__(self, terms: Terms) -> None:
        super().__init__(0.0, declared_size=1)
        self._terms = terms
        self._key = ec.generate_private_key(ec.SECP256R1())

    @property
    def public_key(self) -> ec.EllipticCurvePublicKey:
        """By which the notary knows it."""
        return self._key.public_key()

    def _enrolled(self) -> ConfigRecord:
        record = super()._enrolled()
        challenge = public_bytes(X25519PrivateKey.generate())
        owner = owner_name(self.public_key)
        record[messages.REQUEST] = write_request(owner, bytes(NAME_BYTES), challenge)
        return record

    def _sum(self, message: Message, length: int) -> ConfigRecord:
        asked = message.content.config_records[messages.ASK]
        round_, bits = int(asked[messages.ROUND]), self._terms.ring_bits  # type: ignore[arg-type]
        assert bits is not None
        ticket, seeds = write_ticket(Occasion.of(self._terms, round_), self._key, NO_TOKEN)
        numbers = zeros(length, bits)
        add_masks(numbers, seeds)
        return ConfigRecord({messages.SUM: numbers.tobytes(), messages.TICKET: ticket})
