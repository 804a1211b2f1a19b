"""What the page says, in words: the values that its template is filled with."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from coinflower.accounting.ledger.statement import MOST_ROUNDS
from coinflower.accounting.rounding import rounded_down, rounded_up
from coinflower.client.page.drawing import COLOURS, draw_curve, gauge
from coinflower.client.page.figures import Figures, work_out
from coinflower.client.page.ledger_snapshot import Account, LedgerReading, Reader
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import Policy
from coinflower.protocol.unit import protected_by

if TYPE_CHECKING:  # takes torch along, which a page without a client does without
    from coinflower.client.participant import Participant


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a page is about.

    Attributes:
        reader: The ledger.
        delta: The δ at which to state every ε.
        policy: The owner's policy; None if it is not known.
        participant: The client that runs here; None for a look at the ledger alone.
        server: Where the client's server is.
        joined: Whether that server knows the client.
    """

    reader: Reader
    delta: float
    policy: Policy | None = None
    participant: Participant | None = None
    server: str = ""
    joined: Callable[[], bool] = lambda: False

    def version(self, reading: LedgerReading) -> str:
        """Return what changes when there is something else to see."""
        terms = self.participant.current if self.participant else None
        parts = (reading.version, str(self.joined()), terms.ledger_key if terms else "")
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def may_leave(self, reading: LedgerReading) -> list[str]:
        """Return names of the experiments that the owner can leave, the current one first."""
        if self.participant is None or reading.snapshot is None:
            return []
        terms, left = self.participant.current, reading.snapshot.stops.left
        found = [] if terms is None else [terms.experiment]
        found += [one.name for one in reading.snapshot.accounts if one.remaining_rounds > 0]
        return [name for name in dict.fromkeys(found) if name not in left]


def render(subject: Subject, reading: LedgerReading, form_key: str) -> str:
    """Return the page as HTML."""
    values: dict[str, Any] = {
        "version": subject.version(reading),
        "form_key": form_key,
        "trouble": reading.problem,
        "snapshot": reading.snapshot,
        "subject": subject,
        "joined": subject.joined(),
        "policy_rows": [] if subject.policy is None else _policy_rows(subject.policy),
        "path": subject.reader.path,
        "server_proof": [mode for mode in Mode if mode.client_adds_noise and not mode.masks_sums],
        "protected": _protected(subject, reading),
    }
    if reading.snapshot is not None:
        values.update(_snapshot_values(subject, reading))
    return _TEMPLATE.render(values)


def _protected(subject: Subject, reading: LedgerReading) -> str:
    """Return what the figures are for; before there are experiments, what the policy asks for."""
    accounts = [] if reading.snapshot is None else reading.snapshot.accounts
    units = {account.unit for account in accounts}
    return protected_by(units or ({subject.policy.unit} if subject.policy else set()))


def _snapshot_values(subject: Subject, reading: LedgerReading) -> dict[str, Any]:
    snapshot = reading.snapshot
    assert snapshot is not None
    terms = subject.participant.current if subject.participant else None
    budget = None if subject.policy is None else subject.policy.budget
    figures = work_out(
        snapshot, delta=subject.delta, budget=budget, current=terms.ledger_key if terms else None
    )
    # Experiments keep their colour: they are numbered by when they began.
    experiments = [one.experiment for one in sorted(snapshot.accounts, key=lambda one: one.first)]
    return {
        "figures": figures,
        "gauge": None if budget is None else gauge(figures, budget.epsilon),
        "curve": draw_curve(figures, experiments) if len(figures.curve) > 1 else None,
        "rows": [
            _row(account, figures, snapshot.stops.left, experiments)
            for account in reversed(snapshot.accounts)
        ],
        "terms": terms,
        "mode": terms.mode.facts.label if terms else "",
        "most_rounds": MOST_ROUNDS,
        "leavable": [{"name": name, "id": _mark(name)} for name in subject.may_leave(reading)],
        "insecure": any(not account.secure for account in snapshot.accounts),
    }


def _row(
    account: Account, figures: Figures, left: Mapping[str, str], experiments: Sequence[str]
) -> dict[str, Any]:
    if account.name in left:
        state = "left"
    else:
        state = "enrolled" if account.remaining_rounds > 0 else "ended"
    return {
        "account": account,
        "epsilon": figures.by_experiment[account.experiment],
        "state": state,
        "colour": experiments.index(account.experiment) % COLOURS,
    }


def _policy_rows(policy: Policy) -> list[tuple[str, str]]:
    rows = [
        ("Budget", f"ε = {policy.budget.epsilon:g} at δ = {policy.budget.delta:g}, for all time"),
        ("Protected", policy.unit.facts.protected),
        (f"{policy.unit.capitalize()}s, at most", f"{policy.declared_size:,}"),
        ("Modes allowed", ", ".join(sorted(policy.modes))),
        ("Participation probability p, at most", f"{policy.largest_p:g}"),
        ("Sampling rate q, at most", f"{policy.largest_q:g}"),
        ("Clip norm, at most", f"{policy.largest_clip_norm:g}"),
        ("Cap on the whole sum, in clip norms, at most", _largest_cap(policy)),
        ("Noise multiplier, at least", f"{policy.least_noise_multiplier:g}"),
        ("Models allowed", ", ".join(sorted(policy.models))),
        ("Tasks allowed", ", ".join(sorted(policy.tasks))),
    ]
    if any(mode.masks_sums for mode in policy.modes):
        rows += [
            ("Notaries", ", ".join(sorted(policy.notaries)) or "none: mode masked is refused"),
            ("Clients of an opened sum, at least", f"{policy.least_threshold:,}"),
            ("Colluding clients to withstand, at least", f"{policy.least_colluders:,}"),
        ]
    if policy.insecure_seed is not None:
        rows.append(("INSECURE", "coins, samples and noise are seeded"))
    return rows


def _largest_cap(policy: Policy) -> str:
    return f"{policy.largest_cap:g}" if math.isfinite(policy.largest_cap) else "none needed"


def _mark(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:12]


def _figure(value: float, *, up: bool = True) -> Markup:
    """Return a rounded figure that carries the exact one along."""
    text = rounded_up(value) if up else rounded_down(value)
    return Markup('<data value="{}">{}</data>').format(repr(value), text)


def _moment(text: str) -> Markup:
    """Return a time of the ledger as people read it."""
    return Markup('<time datetime="{}">{} UTC</time>').format(text, text[:16].replace("T", " "))


def _environment() -> jinja2.Environment:
    folder = Path(__file__).parent / "templates"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(
        up=_figure,
        down=lambda value: _figure(value, up=False),
        moment=_moment,
        percent="{:.3%}".format,
    )
    return environment


_TEMPLATE = _environment().get_template("page.html")
