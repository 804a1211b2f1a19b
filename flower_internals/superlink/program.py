"""Flower's SuperLink with the fence and the desk in it, as a program."""

from __future__ import annotations

import functools
import gc
from types import SimpleNamespace
from typing import Any

from flwr.server.superlink.linkstate import linkstate_factory
from flwr.supercore.object_store import object_store_factory
from flwr.superlink import main
from flwr.superlink.cli import flower_superlink
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers
from uvicorn.protocols.http import auto

from coinflower.flower_internals.superlink.asides import CALLS, ObjectsAside, pulled
from coinflower.flower_internals.superlink.bodies import LongBodyProtocol
from coinflower.flower_internals.superlink.desk import Office, ServersDesk
from coinflower.flower_internals.superlink.fence import Fence
from coinflower.flower_internals.superlink.programs import ProgramsOnly
from coinflower.flower_internals.superlink.questions import OrderedLinkState
from coinflower.flower_internals.superlink.store import NamedStore

_FENCED = (
    "deactivate_node",
    "pull_messages",
    "pull_object",
    "push_messages",
    "push_object",
    "confirm_message_received",
    "get_run",
)
_AT_THE_DESK = ("push_messages", "pull_messages", "push_object", "pull_object")


def put_up_fence() -> None:
    """Put the fence before Flower's handlers, and lead objects past its layers, in this process."""
    office, create_app = Office(), main.create_app
    stock = SimpleNamespace(**{name: getattr(fleet_handlers, name) for name in _FENCED})
    fence = Fence(stock, office)
    for name in _FENCED:
        setattr(fleet_handlers, name, getattr(fence, name))
    desk = ServersDesk(
        SimpleNamespace(**{name: getattr(runtime_handlers, name) for name in _AT_THE_DESK}), office
    )
    for name in _AT_THE_DESK:
        setattr(runtime_handlers, name, getattr(desk, name))

    def create(*arguments: Any, **options: Any) -> Any:
        app = create_app(*arguments, **options)
        app.add_middleware(ProgramsOnly)
        app.add_middleware(ObjectsAside)
        # What was imported stays, and is most of what the garbage collector would look through,
        # every other second where a thousand nodes wait for messages.
        gc.freeze()
        return app

    for module in (fleet_handlers, runtime_handlers):
        vars(module)["PullObjectResponse"] = pulled
    vars(main)["create_app"] = create
    vars(auto)["AutoHTTPProtocol"] = functools.partial(LongBodyProtocol, paths=CALLS)
    vars(object_store_factory)["InMemoryObjectStore"] = NamedStore
    vars(linkstate_factory)["InMemoryLinkState"] = OrderedLinkState


def run_fenced_superlink() -> None:
    """Be ``flower-superlink``, which takes its arguments from the command line, with a fence."""
    put_up_fence()
    flower_superlink()
