"""Which nodes are the notaries of the terms, and whether it was they who answered.

Any node may say that it is one. It is taken for the notary until it fails to prove an answer.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from coinflower.masking.answers import require_answer
from coinflower.masking.sealing import SealError
from coinflower.masking.tickets import Occasion
from coinflower.protocol.terms import Terms

logger = logging.getLogger("coinflower.server")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What notaries are asked.

    Attributes:
        occasion: For which round; 0 before the first.
        content: What they are to answer for.
        asker: A fresh key, to which they prove their answers.
    """

    occasion: Occasion
    content: bytes
    asker: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate)


class Notaries:
    """The notaries of the terms; where these name none, only nodes that are not clients.

    Args:
        terms: The public terms.

    Attributes:
        online: The nodes that are there.
    """

    def __init__(self, terms: Terms) -> None:
        self.keys = terms.notaries
        self.online: set[int] = set()
        self._claimed: dict[int, str] = {}
        self._liars: set[int] = set()

    @property
    def nodes(self) -> frozenset[int]:
        """The nodes that are notaries, or said so: no clients."""
        return frozenset(self._claimed) | self._liars

    @property
    def missing(self) -> list[str]:
        """The notaries of the terms that no node is."""
        return [key for key in self.keys if self.node_of(key) is None]

    def told_missing(self) -> str:
        """Return which notaries are not there, in a sentence; empty if none is missing."""
        missing = self.missing
        named = ", ".join(f"{key[:16]}…" for key in missing)
        return f"No node is the notary {named}." if missing else ""

    def note(self, node: int, key: object) -> None:
        """Take a node for the notary that it says it is."""
        if node in self._liars or self._claimed.get(node) == key:
            return
        self._claimed[node] = str(key)
        if key in self.keys:
            logger.info("Node %d is the notary %s….", node, str(key)[:16])

    def node_of(self, key: str) -> int | None:
        """Return a node that is this notary, if one is there."""
        nodes = (node for node, claimed in self._claimed.items() if claimed == key)
        return next((node for node in nodes if node in self.online), None)

    def went_silent(self, node: int, why: str) -> None:
        """Do not count on a node until it says again that it is a notary."""
        logger.warning("The notary at node %d gave no usable answer: %s.", node, why)
        self._claimed.pop(node, None)

    def has_proved(self, node: int, asked: Asked, told: bytes, proof: object) -> bool:
        """Return whether a node is the notary that it says it is; if not, never believe it again.

        Args:
            node: Who answered.
            asked: What it was asked.
            told: What it answered.
            proof: That the notary did so.
        """
        try:
            if not isinstance(proof, bytes):
                raise SealError("there is no proof")
            require_answer(
                asked.occasion,
                asked.content,
                told,
                proof,
                asker=asked.asker,
                notary=bytes.fromhex(self._claimed.get(node, "")),
            )
        except ValueError as error:  # no proof, or a claim that is no key at all
            logger.warning("Node %d is not the notary that it says it is: %s.", node, error)
            self._claimed.pop(node, None)
            self._liars.add(node)
            return False
        return True
