"""The page as a FastAPI app: one page, its version, two downloads and, for a client, three buttons.

`guarded_site` is what it shares with the operator's page.

A browser asks for the version every second, which costs a look at the file's time stamp, and for
the page again only when the version is another.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import parse_qsl

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse
from starlette.concurrency import run_in_threadpool
from starlette.staticfiles import StaticFiles

from coinflower.accounting.ledger.entries import to_csv, to_json
from coinflower.accounting.ledger.errors import LedgerError
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.client.page.access import Access, DeniedError
from coinflower.client.page.view import Subject, render

_MOST_FORM_BYTES = 4096
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

Next = Callable[[Request], Awaitable[Response]]


def make_site(subject: Subject, access: Access, *, port: int) -> FastAPI:
    """Return the app.

    Args:
        subject: What the page is about.
        access: Who may do what.
        port: Where it is served: browsers keep cookies of all ports of a host in one jar.
    """
    site = guarded_site(access, port=port, whose="client")
    _add_views(site, subject, access)
    if subject.participant is not None:
        _add_buttons(site, subject, access)
    return site


def guarded_site(access: Access, *, port: int, whose: str) -> FastAPI:
    """Return an app that admits nobody without the token, with the looks of all pages.

    Args:
        access: Who may do what.
        port: Where it is served.
        whose: Which program printed the link.
    """
    site = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    _keep_out(site, access, cookie=f"coinflower-{port}", whose=whose)
    site.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"))
    return site


def _keep_out(site: FastAPI, access: Access, *, cookie: str, whose: str) -> None:
    @site.middleware("http")
    async def guard(request: Request, proceed: Next) -> Response:
        try:
            response = await _admit(request, proceed, access, cookie, whose)
        except DeniedError as denied:
            response = PlainTextResponse(f"{denied}\n", denied.status)
        response.headers.update(_HEADERS)
        return response

    @site.exception_handler(DeniedError)
    async def deny(_: Request, denied: DeniedError) -> Response:
        return PlainTextResponse(f"{denied}\n", denied.status)

    @site.exception_handler(LedgerError)
    async def explain(_: Request, error: LedgerError) -> Response:
        return PlainTextResponse(f"{error}\n", 409)


async def _admit(
    request: Request, proceed: Next, access: Access, cookie: str, whose: str
) -> Response:
    access.check(request.method, request.headers)
    link = request.query_params.get("token")
    if access.admits(link):
        # Sent on at once, so that the token does not stay in the address bar.
        response = RedirectResponse("/", 303)
        response.set_cookie(cookie, access.token, httponly=True, samesite="strict")
        return response
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    given = bearer if scheme.lower() == "bearer" else request.cookies.get(cookie)
    if not access.admits(given):
        raise DeniedError(401, f"Open the link that the {whose} printed when it started.")
    return await proceed(request)


def _add_views(site: FastAPI, subject: Subject, access: Access) -> None:
    path = subject.reader.path

    @site.get("/")
    def page() -> Response:
        return HTMLResponse(render(subject, subject.reader.look(), access.form_key))

    @site.get("/version")
    def version() -> Response:
        return JSONResponse({"version": subject.version(subject.reader.look())})

    @site.get("/ledger.csv")
    def table() -> Response:
        with Ledger.open(path, read_only=True) as ledger:
            return _download(to_csv(ledger.history()), "text/csv")

    @site.get("/ledger.json")
    def record() -> Response:
        with Ledger.open(path, read_only=True) as ledger:
            return _download(to_json(ledger.data_set, ledger.history()) + "\n", "application/json")


def _download(text: str, kind: str) -> Response:
    return Response(text, media_type=kind, headers={"Content-Disposition": "attachment"})


def _add_buttons(site: FastAPI, subject: Subject, access: Access) -> None:
    participant = subject.participant
    assert participant is not None

    async def press(request: Request, action: Callable[[dict[str, str]], None]) -> Response:
        form = await _form(request)
        access.require_form_key(form.get("key"))
        await run_in_threadpool(action, form)
        await run_in_threadpool(subject.reader.look, now=True)
        return RedirectResponse("/", 303)

    @site.post("/pause")
    async def pause(request: Request) -> Response:
        return await press(request, lambda _: participant.pause())

    @site.post("/resume")
    async def resume(request: Request) -> Response:
        return await press(request, lambda _: participant.resume())

    @site.post("/leave")
    async def leave(request: Request) -> Response:
        def go(form: dict[str, str]) -> None:
            experiment = form.get("experiment", "")
            if experiment not in subject.may_leave(subject.reader.look(now=True)):
                raise DeniedError(404, "This client is in no such experiment.")
            participant.leave(experiment)

        return await press(request, go)


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form; a long one is none of ours."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_FORM_BYTES:
            raise DeniedError(413, "This form is too long.")
    return dict(parse_qsl(body.decode("ascii", "replace"), keep_blank_values=True))
