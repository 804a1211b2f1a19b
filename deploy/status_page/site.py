"""The operator's page as an app: one page, its version, and the same figures for programs."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse

from coinflower.accounting.errors import UserError
from coinflower.client.page.access import Access
from coinflower.client.page.site import guarded_site
from coinflower.deploy.machines.standing import read_server_status
from coinflower.deploy.status_page.view import render, version_of


def make_status_site(folder: Path, access: Access, port: int) -> FastAPI:
    """Return the app.

    Args:
        folder: The server's folder.
        access: Who may look.
        port: Where it is served.
    """
    site = guarded_site(access, port=port, whose="server")

    @site.exception_handler(UserError)
    async def explain(_: Request, error: UserError) -> Response:
        return PlainTextResponse(f"{error}\n", 500)

    @site.get("/")
    def page() -> Response:
        return HTMLResponse(render(folder))

    @site.get("/version")
    def version() -> Response:
        return JSONResponse({"version": version_of(read_server_status(folder))})

    @site.get("/status.json")
    def status() -> Response:
        return JSONResponse(read_server_status(folder))

    return site
