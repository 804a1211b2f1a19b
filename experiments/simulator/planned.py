"""A plan's file, as a simulation takes it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coinflower.accounting.errors import UserError
from coinflower.learning import FineTuning
from coinflower.protocol.terms import Terms


@dataclass(frozen=True, kw_only=True, eq=False)
class Planned:
    """What a plan says about a training.

    Attributes:
        fields: Fields of a request, by name.
        update: Fields of its update, by name.
    """

    fields: dict[str, Any]
    update: dict[str, Any]


def read_plan(path: Path) -> Planned:
    """Return what `coinflower plan` wrote: its JSON, printed into a file or as plan.json.

    Raises:
        UserError: The file cannot be read, is no plan, or proposes no terms.
    """
    try:
        plan = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from None
    except ValueError:
        raise UserError(f"{path} is no JSON; give a file that `plan --json` printed.") from None
    try:
        terms = Terms.from_fields(plan["terms"])
        fields = {
            "iterations": terms.rounds,
            "total_epsilon": plan["total_epsilon"],
            "delta": plan["delta"],
            "sigma": terms.noise_multiplier,
            "noise": str(terms.mode),
            "clients": plan["clients"],
            "d": plan["d"],
            "p": terms.p,
            "q": terms.q,
            "clip_norm": terms.clip_norm,
            "clipping": terms.clipping,
            "cap": terms.cap if terms.is_capped else math.inf,
            "threshold": terms.threshold,
            "colluders": terms.colluders,
            "unit": terms.unit,
            "schema": _file(plan, "schema"),
            # If nobody chose one, the data at hand does, as it did for the plan.
            "model": plan.get("stated_model", terms.model),
            "model_options": terms.model_options,
            "tuning": FineTuning(
                pretrained=_file(plan, "pretrained"),
                trained_parts=terms.trained_parts,
                lora_rank=terms.lora_rank,
            ),
            "task": terms.task,
            "task_options": terms.task_options,
        }
        return Planned(fields=fields, update=dict(plan["update"]))
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path} is no plan with terms (it lacks {error}); make one by `coinflower plan … "
            "--json` with this version, without --scheme."
        ) from None


def _file(plan: dict[str, Any], name: str) -> Path | None:
    """Return a public file that a plan names; plans of earlier versions name none."""
    return Path(plan[name]) if plan.get(name) else None
