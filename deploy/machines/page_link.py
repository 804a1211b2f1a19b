"""How the owner of a page gets its link, whose token must not end up in a log."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from coinflower.accounting.errors import UserError
from coinflower.client.page.server import SiteServer
from coinflower.deploy.terminal import say


@contextlib.contextmanager
def told_link(server: SiteServer, subject: Path, whose: str = "owner") -> Iterator[None]:
    """Show the link on a terminal; elsewhere output may be a log, so put it into a file.

    Args:
        server: The page.
        subject: What it is about: the file, for its owner only as long as the block lasts, is
            beside it.
        whose: Whose page it is.

    Raises:
        ValueError: The file cannot be written.
    """
    if sys.stdout.isatty():
        say(f"The {whose}'s page, for whoever has this link: {server.url}")
        _warn(server)
        yield
        return
    path = subject.absolute().with_name(f"{subject.name}.page")
    try:
        path.unlink(missing_ok=True)
        # Made anew, so that neither a link nor another's open file receives the token.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise UserError(
            f"The link to the page cannot be written to {path} ({error.strerror}); make its folder "
            "writable, or start this in a terminal."
        ) from None
    with os.fdopen(handle, "w") as file:
        file.write(f"{server.url}\n")
    try:
        say(f"The link to the {whose}'s page is in {path}, for this user only.")
        _warn(server)
        yield
    finally:
        path.unlink(missing_ok=True)


def _warn(server: SiteServer) -> None:
    if server.warning:
        say(server.warning)
