"""Having the notaries vouch for clients' ledgers before these are asked for anything."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import Message

from coinflower.masking.sealing import public_bytes
from coinflower.masking.tickets import Occasion
from coinflower.masking.vouchers import NO_VOUCHER, REQUEST_BYTES, VOUCHER_BYTES
from coinflower.protocol import messages
from coinflower.protocol.terms import Terms
from coinflower.server.grid import Pending, PromptGrid
from coinflower.server.masked.notaries import Asked, Notaries
from coinflower.server.questions import answer_of, question

logger = logging.getLogger("coinflower.server")


@dataclass(frozen=True, kw_only=True)
class _Sent(Asked):
    """What one notary was asked.

    Attributes:
        notary: Its key.
        node: Which node it was then.
        requests: What the clients want to know, by node.
        pending: The message.
    """

    notary: str
    node: int
    requests: Mapping[int, bytes]
    pending: Pending


class Vouching:
    """The vouchers of all clients; where the terms name no notary, nobody needs one.

    Args:
        grid: How to reach notaries.
        terms: The public terms.
        notaries: Who they are.
        reply_seconds: How long they may take to answer.
    """

    def __init__(
        self, grid: PromptGrid, terms: Terms, notaries: Notaries, reply_seconds: float
    ) -> None:
        self._grid = grid
        self._terms = terms
        self._notaries = notaries
        self._reply_seconds = reply_seconds
        self._requests: dict[int, bytes] = {}
        self._given: dict[int, dict[str, bytes]] = {}
        self._sent: list[_Sent] = []

    def request(self, node: int, request: object) -> None:
        """Have the notaries vouch for a client that enrolled."""
        self._given.pop(node, None)
        if not isinstance(request, bytes) or len(request) != REQUEST_BYTES:
            logger.warning("Client %d asked nothing of the notaries; it stays out.", node)
            return
        self._requests[node] = request
        self._given[node] = {}

    def is_complete(self, node: int) -> bool:
        """Return whether all notaries have vouched for a client."""
        given = self._given.get(node, {})
        return all(key in given for key in self._notaries.keys)

    def vouchers(self, node: int) -> bytes:
        """Return what all notaries say of a client's ledger, as it travels."""
        given = self._given.get(node, {})
        return b"".join(given[key] for key in self._notaries.keys)

    def refresh(self) -> list[int]:
        """Ask for vouchers, take those that came, and return whom a notary does not allow."""
        for key in self._notaries.keys:
            notary = self._notaries.node_of(key)
            # A notary that was restarted is another node, and does not answer for the one before.
            if notary is None or any(sent.node == notary for sent in self._sent):
                continue
            requests = {
                node: self._requests[node]
                for node, given in self._given.items()
                if key not in given and node in self._notaries.online
            }
            if requests:
                self._ask(key, notary, requests)
        unwanted = [node for sent in self._sent for node in self._take(sent)]
        self._sent = [sent for sent in self._sent if sent.pending.outstanding]
        return unwanted

    def _ask(self, key: str, notary: int, requests: Mapping[int, bytes]) -> None:
        asked = Asked(occasion=Occasion.of(self._terms, 0), content=b"".join(requests.values()))
        fields = {messages.REQUESTS: asked.content, messages.ASKER: public_bytes(asked.asker)}
        message = Message(
            question(self._terms, fields),
            dst_node_id=notary,
            message_type=f"query.{messages.VOUCH}",
            ttl=self._reply_seconds,
        )
        pending = self._grid.push([message])
        self._sent.append(
            _Sent(**vars(asked), notary=key, node=notary, requests=requests, pending=pending)
        )

    def _take(self, sent: _Sent) -> list[int]:
        """Keep the vouchers that came; return the clients that get none."""
        unwanted = []
        for reply in sent.pending.poll():
            notary, answer = reply.metadata.src_node_id, answer_of(reply)
            content = answer.get(messages.VOUCHERS)
            wanted = len(sent.requests) * VOUCHER_BYTES
            if not isinstance(content, bytes) or len(content) != wanted:
                self._notaries.went_silent(notary, "it vouched for nobody")
                continue
            if not self._notaries.has_proved(notary, sent, content, answer.get(messages.PROOF)):
                continue
            for place, (node, request) in enumerate(sent.requests.items()):
                if self._requests.get(node) != request or node not in self._given:
                    continue  # it enrolled again meanwhile
                voucher = content[place * VOUCHER_BYTES : (place + 1) * VOUCHER_BYTES]
                if voucher == NO_VOUCHER:
                    del self._given[node]
                    unwanted.append(node)
                else:
                    self._given[node][sent.notary] = voucher
        return unwanted
