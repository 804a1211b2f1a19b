"""What the operator's page says; nothing of what clients spent, nor of who took part in a round."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import jinja2

from coinflower.deploy.machines.standing import read_server_status
from coinflower.learning.tasks.metrics import shown, title_of

_TEMPLATE = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
).get_template("status.html")


def version_of(status: dict[str, Any]) -> str:
    """Return what changes when there is something else to see."""
    return hashlib.sha256(json.dumps(status, sort_keys=True).encode()).hexdigest()[:16]


def render(folder: Path) -> str:
    """Return the page as HTML."""
    status = read_server_status(folder)
    return _TEMPLATE.render(
        version=version_of(status),
        folder=folder,
        status=status,
        experiments=[_described(one) for one in status["experiments"]],
        insecure=any(one["insecure"] for one in status["experiments"]),
    )


def _described(experiment: dict[str, Any]) -> dict[str, Any]:
    measured = experiment["metrics"] or {}
    return {
        **experiment,
        "measured": [(title_of(name), shown(name, value)) for name, value in measured.items()],
    }
