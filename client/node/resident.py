"""The resident node: a Flower node that stays connected and runs only code installed here.

A stock SuperNode fetches the app from the server and starts a process for every message. The
resident node joins a SuperLink through the same API but handles each message in this process, with
a ClientApp that was imported here: no code, and no configuration, comes from the wire
(``context.run_config`` is empty). Messages are handled one at a time, in the order of arrival.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Literal, TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from flwr.clientapp import ClientApp

from coinflower.client.node.handling import MessageHandler, NodeConfig
from coinflower.client.node.link import (
    ForgottenError,
    Link,
    LostMessageError,
    RejectedError,
    UnreachableError,
)
from coinflower.client.node.polling_group import PollingGroup
from coinflower.client.node.proxies import proxy_address
from coinflower.flower_internals.messages import Arrival
from coinflower.protocol.foreign import quoted

Result = TypeVar("Result")

_FIRST_BACKOFF_SECONDS = 0.5
_REMINDER_SECONDS = 60.0
_STOP_PATIENCE_SECONDS = 1.0
_EAGER_SECONDS = 1.0
_EAGERNESS = 6.0
_KEPT_RUNS = 8


class ResidentNode:
    """A node of the federation; ``run`` keeps it connected until ``stop`` is set.

    Args:
        address: ``host:port`` of the SuperLink.
        app: The ClientApp that handles messages.
        stop: Set it to make ``run`` return.
        node_config: What handlers read from ``context.node_config``.
        insecure: Plain HTTP; otherwise TLS.
        root_certificates: PEM of the authority to trust; None trusts public authorities.
        private_key: Key of a node that is registered at the SuperLink; None registers a fresh key.
        poll_interval: Seconds between two polls of an idle node.
        heartbeat_interval: The SuperLink considers the node gone after twice this time of silence,
            or longer if it is one of hundreds in this process; Flower allows 10 to 1800 seconds.
        max_backoff: Longest pause between two attempts to reach the SuperLink.
        drain_seconds: How much longer the current message may take after ``stop`` is set.
        polling_group: Shared by the nodes of one process; None stands for a node on its own.
        proxy: What the connection goes through, if not directly.
        logger: Where the node says what happens to it.

    Raises:
        ValueError: If ``poll_interval`` or ``heartbeat_interval`` is out of range.
    """

    def __init__(
        self,
        address: str,
        app: ClientApp,
        *,
        stop: threading.Event,
        node_config: NodeConfig | None = None,
        insecure: bool = False,
        root_certificates: bytes | None = None,
        private_key: ec.EllipticCurvePrivateKey | None = None,
        poll_interval: float = 0.4,
        heartbeat_interval: float = 10.0,
        max_backoff: float = 5.0,
        drain_seconds: float = 0.0,
        polling_group: PollingGroup | None = None,
        proxy: httpx.Proxy | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        if not poll_interval > 0:
            raise ValueError(f"poll_interval = {poll_interval} must be positive")
        if not 10 <= heartbeat_interval <= 1800:
            raise ValueError(f"heartbeat_interval = {heartbeat_interval} must lie in 10 to 1800")
        self._address = address
        self._stop = stop
        self._insecure = insecure
        self._root_certificates = root_certificates
        self._private_key = private_key
        self._proxy = proxy
        self._poll_interval = poll_interval
        self._heartbeat_interval = heartbeat_interval
        self._max_backoff = max_backoff
        self._drain_seconds = drain_seconds
        self._company = PollingGroup() if polling_group is None else polling_group
        self._log = logging.getLogger("coinflower.client") if logger is None else logger
        self._handler = MessageHandler(app, node_config or {}, self._log)
        self._unconfirmed: OrderedDict[int, str] = OrderedDict()
        self._link: Link | None = None
        self._reminded_at: float | None = None
        self._eager_until = 0.0
        self._news = 0
        self._in_hand = False
        self._waiting = False
        self._hasty = False
        self._left = False
        self.node_id: int | None = None

    @property
    def joined(self) -> bool:
        """Whether the SuperLink knows this node and answered when last asked."""
        return self._link is not None and self._reminded_at is None

    def run(self) -> None:
        """Be a node until ``stop`` is set.

        It returns within about two seconds of that, or ``drain_seconds`` more during a message.
        """
        worker = threading.Thread(target=self._serve, name="coinflower-node", daemon=True)
        heart = threading.Thread(target=self._keep_alive, name="coinflower-heart", daemon=True)
        with self._company.membership():
            worker.start()
            heart.start()
            self._stop.wait()
            self._company.tell(urgent=True)
            link = self._link
            if self._waiting and link is not None:
                self._say_goodbye(link)  # which ends the wait
            # Threads that wait for a silent network, or for a handler, are left behind: they are
            # daemons, and find their connection closed.
            worker.join(_STOP_PATIENCE_SECONDS)
            patience = time.monotonic() + self._drain_seconds
            while self._in_hand and worker.is_alive() and time.monotonic() < patience:
                worker.join(_STOP_PATIENCE_SECONDS)
        if worker.is_alive():
            self._log.warning("Stopped while a message was being handled or the network was silent")
        link, self._link, self.node_id = self._link, None, None
        if link is not None:
            self._say_goodbye(link)

    def _say_goodbye(self, link: Link) -> None:
        """Leave, once."""
        if self._left:
            return
        self._left = True
        if self._reminded_at is not None:
            link.close()
            return
        goodbye = threading.Thread(target=link.leave, daemon=True)
        goodbye.start()
        goodbye.join(_STOP_PATIENCE_SECONDS)

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                link = self._insist(self._join, joining=True)
                while not self._stop.is_set():
                    self._take_turn(link)
            except ForgottenError:
                self._log.warning("The SuperLink no longer knows this node; joining again")
            except _Stopped:
                return
            except Exception:
                self._log.exception("Unexpected failure of the node; joining again")
                self._stop.wait(self._max_backoff)

    def _join(self) -> Link:
        """Open a connection, with a new key if there is none of its own."""
        if self._link is not None:
            self._link.close()
            self._link, self.node_id = None, None
        with self._company.joining():
            link = Link(
                self._address,
                insecure=self._insecure,
                root_certificates=self._root_certificates,
                private_key=self._private_key,
                heartbeat_interval=self._heartbeat_interval,
                polling_group=self._company,
                stop=self._stop,
                proxy=self._proxy,
            )
            try:
                self.node_id = link.join()
            except BaseException:
                link.close()
                raise
        self._link = link
        way = "" if self._proxy is None else f" through the proxy {proxy_address(self._proxy)}"
        self._log.info("Joined the SuperLink at %s as node %s%s", self._address, self.node_id, way)
        return link

    def _take_turn(self, link: Link) -> None:
        """Wait for the moment to poll, poll, and handle what came."""
        if not link.waits or self._hasty:
            eager = time.monotonic() < self._eager_until
            self._company.await_poll(
                self._poll_interval / (_EAGERNESS if eager else 1), news=self._news
            )
            self._news = self._company.news
            if self._stop.is_set():
                return
        self._waiting, started = True, time.monotonic()
        try:
            arrival = self._insist(link.poll)
        finally:
            self._waiting = False
        # A SuperLink that says that it waits, and does not, is not asked all the time.
        self._hasty = arrival is None and time.monotonic() - started < self._poll_interval
        if arrival is None or self._left:
            return
        self._company.tell()
        self._in_hand = True
        try:
            self._handle(link, arrival)
        except (LostMessageError, RejectedError) as error:
            kind = quoted(arrival.message.metadata.message_type)
            self._log.warning("A %s message is dropped: %s", kind, error)
        finally:
            self._in_hand = False
        # The next message of a round tends to follow soon.
        self._eager_until = time.monotonic() + _EAGER_SECONDS

    def _handle(self, link: Link, arrival: Arrival) -> None:
        message, came = arrival.message, time.monotonic()
        try:
            message.content = self._insist(lambda: link.fetch(arrival))
        except LostMessageError:
            reply = self._handler.failure(message)
        else:
            with self._company.handling():
                reply = self._handler.answer(message, self.node_id or 0)
        answered = time.monotonic()
        self._insist(lambda: link.reply(reply))
        self._tell_lateness(message, came, answered)
        if not link.waits:  # else the reply has said so
            self._forget_previous(link, message)

    def _tell_lateness(self, message: Message, came: float, answered: float) -> None:
        """Tell the owner if an answer cannot have counted: the line may be too slow for it."""
        now, patience = time.monotonic(), message.metadata.ttl
        if now - came > patience:
            self._log.warning(
                "An answer came too late: it was sent %.0f s after the question, of which sending "
                "took %.0f s, and the server waits for %.0f s. If this happens often, ask its "
                "operator for longer reply_seconds and upload_seconds.",
                now - came,
                now - answered,
                patience,
            )

    def _forget_previous(self, link: Link, message: Message) -> None:
        """Let the SuperLink drop the previous message of the same run.

        Do not drop this one: its upload may not be complete, because only the part that was not in
        the cache has been waited for, and the server's upload fails if the SuperLink drops it
        meanwhile. A server that sends the next message has finished sending the previous one.
        """
        run_id = message.metadata.run_id
        previous = self._unconfirmed.pop(run_id, None)
        self._unconfirmed[run_id] = message.metadata.message_id
        if len(self._unconfirmed) > _KEPT_RUNS:
            self._unconfirmed.popitem(last=False)
        if previous is not None:
            self._insist(lambda: link.confirm(run_id, previous))

    def _insist(self, attempt: Callable[[], Result], *, joining: bool = False) -> Result:
        """Try until the SuperLink can be reached, and say so while it cannot."""
        backoff = _FIRST_BACKOFF_SECONDS
        while True:
            try:
                result = attempt()
            except UnreachableError as error:
                if self._stop.is_set():  # the connection was closed meanwhile
                    raise _Stopped from error
                self._complain("cannot be reached", error)
            except RejectedError as error:
                if not joining:
                    raise
                self._complain("does not accept this node", error)
            except ForgottenError as error:
                if not joining:
                    raise
                why = str(error) or "it rejects this key's signature"
                self._complain("does not accept this node", why)
            else:
                if self._reminded_at is not None:
                    self._log.info("The SuperLink at %s answers again", self._address)
                    self._reminded_at = None
                return result
            if self._stop.wait(backoff * random.uniform(0.7, 1.0)):
                raise _Stopped
            backoff = min(2 * backoff, self._max_backoff)

    def _complain(
        self,
        what: Literal["cannot be reached", "does not accept this node"],
        why: Exception | str,
    ) -> None:
        moment = time.monotonic()
        if self._reminded_at is None or moment - self._reminded_at > _REMINDER_SECONDS:
            self._reminded_at = moment
            self._log.warning(
                "The SuperLink at %s %s (%s). Still trying, at most %g s apart; Ctrl-C stops.",
                self._address,
                what,
                why,
                self._max_backoff,
            )

    def _keep_alive(self) -> None:
        """Send heartbeats, even while a handler is working."""
        pause = 0.0
        while not self._stop.wait(pause):
            promised = self._company.heartbeat_seconds(self._heartbeat_interval)
            pause = 0.6 * promised * random.uniform(0.8, 1.0)
            link = self._link
            if link is not None:
                try:
                    link.beat()
                except UnreachableError:
                    pause = 1.0
                except (ForgottenError, RejectedError, LostMessageError) as error:
                    # The next poll gets the same answer and reconnects.
                    self._log.debug("Heartbeat refused: %r", error)


class _Stopped(Exception):  # noqa: N818 - not an error
    """``stop`` was set while waiting for the SuperLink."""
