"""The notary's Flower ClientApp: it joins a federation as a node, and says that it is no client."""

from __future__ import annotations

import logging
from collections.abc import Callable

from flwr.app import ConfigRecord, ConfigRecordValues, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from coinflower.masking.answers import objection_bytes
from coinflower.notary.notary import Notary
from coinflower.protocol import messages
from coinflower.protocol.foreign import printable
from coinflower.protocol.objections import ObjectionError
from coinflower.protocol.terms import Terms

logger = logging.getLogger("coinflower.notary")

Fields = dict[str, ConfigRecordValues]

_MOST_CHARACTERS = 400


def make_app(notary: Notary) -> ClientApp:
    """Return the app of a notary; it needs the resident node, which tells servers no errors."""
    made = ClientApp()
    made.query(messages.ENROL)(_answering(lambda _: _enrol(notary)))
    made.query(messages.VOUCH)(_answering(lambda ask: _vouch(notary, ask)))
    made.query(messages.OPEN)(_answering(lambda ask: _open(notary, ask)))
    return made


def _answering(
    handler: Callable[[ConfigRecord], Fields],
) -> Callable[[Message, Context], Message]:
    def handle(message: Message, context: Context) -> Message:
        del context
        fields = handler(message.content.config_records[messages.ASK])
        record = ConfigRecord({**fields, messages.SALT: messages.salt()})
        return Message(RecordDict({messages.ANSWER: record}), reply_to=message)

    return handle


def _enrol(notary: Notary) -> Fields:
    notary.require_ready()
    return {messages.NOTARY: notary.name}


def _vouch(notary: Notary, ask: ConfigRecord) -> Fields:
    terms, requests = _terms(ask), _bytes(ask, messages.REQUESTS)
    told = notary.vouch(terms, requests)
    proof = notary.prove(terms, 0, requests, told, _bytes(ask, messages.ASKER))
    return {messages.VOUCHERS: told, messages.PROOF: proof}


def _open(notary: Notary, ask: ConfigRecord) -> Fields:
    """Take the masks off a round, or say why not; either is proved to the server."""
    terms, round_ = _terms(ask), _whole(ask, messages.ROUND)
    tickets, asker = _bytes(ask, messages.TICKETS), _bytes(ask, messages.ASKER)
    fields: Fields
    try:
        told = notary.open(terms, round_, _whole(ask, messages.LENGTH), tickets)
        fields = {messages.OPENED: True, messages.MASKS: told}
    except ObjectionError as error:
        sentence = error.objection.value
        logger.warning("%s (%s)", sentence, printable(str(error), _MOST_CHARACTERS))
        told = objection_bytes(sentence, error.bad)
        fields = {messages.OPENED: False, messages.REASON: sentence, messages.BAD: error.bad}
    return {**fields, messages.PROOF: notary.prove(terms, round_, tickets, told, asker)}


def _terms(ask: ConfigRecord) -> Terms:
    return Terms.from_json(str(ask[messages.TERMS]))


def _whole(ask: ConfigRecord, key: str) -> int:
    value = ask[key]
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{key} = {value!r} is not an integer")
    return value


def _bytes(ask: ConfigRecord, key: str) -> bytes:
    value = ask[key]
    if not isinstance(value, bytes):
        raise TypeError(f"{key} came as {type(value).__name__}, not as bytes")
    return value
