"""The Flower app of a run, which ships no code.

Flower ships a run as a FAB, a zip made from a directory with a ``pyproject.toml``. Both ends of
Coinflower are installed packages, so nothing needs shipping: the directory that ``write_app`` makes
holds only a ``pyproject.toml`` whose components name the *installed* modules
(``coinflower.server.app:app``, ``coinflower.client.app:app``), and the FAB is some 700 bytes. The
ServerApp process puts the unpacked FAB first on ``sys.path``, finds no module in it and imports the
installed one. Values for the run go into ``[tool.flwr.app.config]`` and reach the ServerApp as
``context.run_config``; Flower allows int, float, bool and str there. ``flwr run DIRECTORY`` accepts
the same directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tomli_w

RunConfig = Mapping[str, int | float | bool | str]


def write_app(directory: Path, *, serverapp: str, clientapp: str, config: RunConfig) -> Path:
    """Make the directory of a run's app; see the module's docstring.

    Args:
        directory: Where to write ``pyproject.toml``; made if missing.
        serverapp: ``module:attribute`` of the installed ServerApp.
        clientapp: ``module:attribute`` of the installed ClientApp.
        config: Values that the ServerApp reads from ``context.run_config``.

    Returns:
        The directory.
    """
    app = {
        "publisher": "coinflower",
        "components": {"serverapp": serverapp, "clientapp": clientapp},
        "config": dict(config),
    }
    project = {"name": "coinflower-run", "version": "1.0.0", "description": "", "license": "none"}
    directory.mkdir(parents=True, exist_ok=True)
    text = tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}})
    (directory / "pyproject.toml").write_text(text, encoding="utf-8")
    return directory
