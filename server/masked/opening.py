"""Having the notaries take the masks off a sum."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from flwr.app import Message

from coinflower.masking.answers import objection_bytes
from coinflower.masking.masks import Numbers, numbers_from_bytes
from coinflower.masking.sealing import public_bytes
from coinflower.masking.tickets import Occasion
from coinflower.protocol import messages
from coinflower.protocol.objections import Objection, ObjectionError
from coinflower.protocol.terms import Terms
from coinflower.server.checkpoint import Vector
from coinflower.server.grid import PromptGrid
from coinflower.server.masked.masked_sum import MaskedSum
from coinflower.server.masked.notaries import Asked, Notaries
from coinflower.server.questions import answer_of, question

logger = logging.getLogger("coinflower.server")

_OBJECTIONS = {objection.value: objection for objection in Objection}


class NotaryError(RuntimeError):
    """A notary will not open what this server asks for, now or later; the message says why."""


class Opening:
    """Opens masked sums with the help of all notaries.

    Args:
        grid: How to reach them.
        terms: The public terms.
        notaries: Who they are.
        reply_seconds: How long they may take to answer.
        expel: Called with the nodes whose tickets a notary refuses.
    """

    def __init__(
        self,
        grid: PromptGrid,
        terms: Terms,
        notaries: Notaries,
        reply_seconds: float,
        expel: Callable[[Sequence[int]], None],
    ) -> None:
        self._grid = grid
        self._terms = terms
        self._notaries = notaries
        self._reply_seconds = reply_seconds
        self._expel = expel

    def open(self, round_: int, received: MaskedSum) -> Vector | None:
        """Return the sum without its masks; None if the round is void.

        Raises:
            NotaryError: A notary would object in later rounds, too.
        """
        # By owner, not as they came: a notary has no use for who answered first.
        clients = sorted(received.tickets, key=received.tickets.__getitem__)
        asked = Asked(
            occasion=Occasion.of(self._terms, round_),
            content=b"".join(received.tickets[client] for client in clients),
        )
        masks: list[Numbers] = []
        for reply in self._replies(asked, received.length):
            try:
                masks.append(self._masks_in(reply, asked, received.length))
            except ObjectionError as error:
                self._heed(error, round_, reply.metadata.src_node_id, clients)
        if len(masks) < len(self._notaries.keys):
            logger.warning("Round %d is void: its sum was not opened.", round_)
            return None
        return received.opened(masks)

    def _replies(self, asked: Asked, length: int) -> list[Message]:
        nodes = [self._notaries.node_of(key) for key in self._notaries.keys]
        content = question(
            self._terms,
            {
                messages.ROUND: asked.occasion.round,
                messages.LENGTH: length,
                messages.TICKETS: asked.content,
                messages.ASKER: public_bytes(asked.asker),
            },
        )
        pending = self._grid.push(
            Message(
                content,
                dst_node_id=node,
                message_type=f"query.{messages.OPEN}",
                ttl=self._reply_seconds,
            )
            for node in nodes
            if node is not None
        )
        replies = list(self._grid.collect(pending, self._reply_seconds))
        for node in pending.outstanding:
            self._notaries.went_silent(node, "it was silent")
        return replies

    def _masks_in(self, reply: Message, asked: Asked, length: int) -> Numbers:
        """Return what a notary's reply carries.

        Raises:
            ObjectionError: It objects, or gives no usable answer.
        """
        node, answer = reply.metadata.src_node_id, answer_of(reply)
        reason, bad = str(answer.get(messages.REASON)), answer.get(messages.BAD)
        blamed = [each for each in bad if type(each) is int] if isinstance(bad, list) else []
        opened = answer.get(messages.OPENED)
        told = answer.get(messages.MASKS) if opened else objection_bytes(reason, blamed)
        if not isinstance(opened, bool) or not isinstance(told, bytes):
            raise ObjectionError(Objection.RECORD, "it could not answer")
        if not self._notaries.has_proved(node, asked, told, answer.get(messages.PROOF)):
            raise ObjectionError(Objection.RECORD, "it is another node")
        if not opened:
            raise ObjectionError(_OBJECTIONS.get(reason, Objection.TERMS), reason, blamed)
        assert self._terms.ring_bits is not None
        try:
            return numbers_from_bytes(told, length, self._terms.ring_bits)
        except ValueError as error:
            raise ObjectionError(Objection.RECORD, str(error)) from error

    def _heed(self, error: ObjectionError, round_: int, node: int, clients: Sequence[int]) -> None:
        blamed = [clients[place] for place in error.bad if 0 <= place < len(clients)]
        if error.objection is Objection.TICKETS and blamed:
            self._expel(blamed)
        elif error.objection is Objection.RECORD:
            self._notaries.went_silent(node, str(error))
        else:
            raise NotaryError(
                f"A notary does not open round {round_}, so the run stops: {error.objection.value}"
            )
