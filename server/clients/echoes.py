"""What clients handed out about their ledgers, to be sent back with the next question.

The server cannot read an echo (`coinflower.accounting.ledger.echo`); it keeps the latest one of
every ledger, by the name in the echo. A client that reconnects may be another node, so the echo
that it sends on enrolling says which ledger it has. That echo does not replace an earlier one: if
the ledger was set back, it is the older of the two, and the client has to see the newer one before
it answers anything.
"""

from __future__ import annotations

from flwr.app import ConfigRecord, Message, RecordDict

from coinflower.accounting.ledger.echo import NAME_BYTES, NO_TOKEN, TOKEN_BYTES
from coinflower.protocol import messages
from coinflower.server.checkpoint import CheckpointFolder
from coinflower.server.questions import answer_of

_MOST_LEDGERS = 100_000


class Echoes:
    """The latest echo of every ledger, across restarts.

    Args:
        checkpoints: Where they are kept; with None they are only in memory.
    """

    def __init__(self, checkpoints: CheckpointFolder | None = None) -> None:
        self._checkpoints = checkpoints
        self._latest = checkpoints.load_echoes() if checkpoints else {}
        self._ledgers: dict[int, str] = {}
        self._changed: set[str] = set()

    def beside(self, content: RecordDict, node: int, vouchers: bytes = b"") -> RecordDict:
        """Return a question with the echo for a client beside it, and what notaries say to it.

        The echo is in its own record, so that the model, which is the same for all, is stored once.
        """
        token = self._latest.get(self._ledgers.get(node, ""), NO_TOKEN)
        record = ConfigRecord({messages.ECHO: token, messages.SALT: messages.salt()})
        if vouchers:
            record[messages.VOUCHERS] = vouchers
        return RecordDict({**content, messages.ECHO: record})

    def note_enrolment(self, reply: Message) -> None:
        """Learn which ledger a client has."""
        token = _token_of(reply)
        if token is None:
            return
        name = token[:NAME_BYTES].hex()
        self._ledgers[reply.metadata.src_node_id] = name
        if name not in self._latest and len(self._latest) < _MOST_LEDGERS:
            self._keep(name, token)

    def note_answer(self, reply: Message) -> None:
        """Keep the echo of an answer; the question carried the previous one."""
        token, name = _token_of(reply), self._ledgers.get(reply.metadata.src_node_id)
        if token is not None and token[:NAME_BYTES].hex() == name:
            self._keep(name, token)

    def save(self) -> None:
        """Write changed echoes to disk."""
        if self._changed and self._checkpoints is not None:
            self._checkpoints.save_echoes(self._latest, self._changed)
        self._changed.clear()

    def _keep(self, name: str, token: bytes) -> None:
        self._latest[name] = token
        self._changed.add(name)


def _token_of(reply: Message) -> bytes | None:
    token = answer_of(reply).get(messages.ECHO)
    if isinstance(token, bytes) and len(token) == TOKEN_BYTES and token != NO_TOKEN:
        return token
    return None
