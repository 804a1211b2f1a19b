"""Messages handed to the ClientApp that was imported here, and replies that reveal no failure."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from coinflower.flower_internals.messages import HANDLER_FAILED
from coinflower.protocol.foreign import quoted
from coinflower.protocol.messages import FAILURE_REASON

NodeConfig = Mapping[str, int | float | bool | str]

_KEPT_CONTEXTS = 8


class MessageHandler:
    """Answers messages, whatever happens.

    Args:
        app: The ClientApp.
        node_config: What its handlers read from ``context.node_config``.
        log: Where failures are told in full.
    """

    def __init__(self, app: ClientApp, node_config: NodeConfig, log: logging.Logger) -> None:
        self._app = app
        self._node_config = dict(node_config)
        self._log = log
        self._contexts: OrderedDict[int, Context] = OrderedDict()

    def answer(self, message: Message, node_id: int) -> Message:
        """Return the reply to a message; whatever goes wrong, the server gets the same sentence."""
        try:
            reply = self._app(message, self._context(message.metadata.run_id, node_id))
            if reply.metadata.reply_to_message_id != message.metadata.message_id:
                raise ValueError("the handler's reply answers another message")
            return reply
        except (Exception, SystemExit):
            return self.failure(message)

    def failure(self, message: Message) -> Message:
        """Return an error reply that reveals nothing; called while handling an exception."""
        kind = quoted(message.metadata.message_type)
        self._log.exception("Failed to handle a %s message", kind)
        return Message(Error(HANDLER_FAILED, FAILURE_REASON), reply_to=message)

    def _context(self, run_id: int, node_id: int) -> Context:
        if run_id not in self._contexts:
            self._contexts[run_id] = Context(
                run_id=run_id,
                node_id=node_id,
                node_config=dict(self._node_config),
                state=RecordDict(),
                run_config={},
            )
            if len(self._contexts) > _KEPT_CONTEXTS:
                self._contexts.popitem(last=False)
        return self._contexts[run_id]
