"""A SuperLink answers programs, and no page that somebody has open in a browser."""

from __future__ import annotations

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class ProgramsOnly:
    """Refuses what a browser sends for a page.

    On loopback a SuperLink's Control API has neither a password nor, without keys, TLS. A page of
    any site could start runs there, and their code, if its name is led to this machine while
    somebody here looks at it. Browsers say of every such request which page it comes from; nodes,
    servers and commands never do.

    Args:
        app: What answers programs.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if any(name == b"origin" for name, _ in scope.get("headers", ())):
            refusal = PlainTextResponse("Pages in browsers are not answered here.\n", 403)
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)
