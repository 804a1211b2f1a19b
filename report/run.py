"""What the report says of a federation: one on this machine, or one of separate machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coinflower.accounting.charts import Point
from coinflower.deploy.local.folder import Cluster
from coinflower.deploy.local.local_notary import notary_results
from coinflower.learning.models.saving import MODEL
from coinflower.learning.tasks.metrics import private_sentence
from coinflower.protocol.modes import Mode
from coinflower.protocol.terms import Terms
from coinflower.protocol.unit import Unit
from coinflower.report.clients import ClientRecord, client_line, epsilon_figure, read_client
from coinflower.report.guarantee import (
    ANALYSES,
    OTHER_USES,
    THIS_PAGE,
    Statement,
    statements,
    who_is_protected,
)
from coinflower.report.page import (
    Figure,
    Report,
    count_figure,
    describe_metrics,
    describe_terms,
    how_to_load,
    largest_epsilon,
    measured_rounds,
    metric_figure,
    took_part_caption,
    write_report,
)
from coinflower.server.journal import last_private, read_metrics
from coinflower.server.settings import Settings, load_settings

_NONE = "none"


def report_local_run(cluster: Cluster) -> Path:
    """Write the report of a federation on this machine and return where it is."""
    settings = load_settings(cluster.settings)
    clients = [read_client(cluster, index) for index in range(len(cluster.policies))]
    rows = read_metrics(cluster.server)
    terms = cluster.terms
    private = terms.mode.is_private
    insecure = (
        cluster.insecure
        or any(row.get("insecure") for row in rows)
        or not all(client.secure for client in clients)
    )
    figures = [*_server_figures(settings, rows), *_local_counts(terms, rows, clients)]
    summary = _summary(terms, rows)
    if cluster.notary is not None:
        opened = notary_results(cluster.notary, terms)["rounds_opened"]
        summary.append(Statement(question="Sums opened by the notary", answer=f"{opened:,}"))
    promises: list[Statement] = []
    if private:
        figures.append(epsilon_figure(clients, cluster.delta))
        worst = max(clients, key=lambda client: client.epsilon or 0.0)
        assert worst.epsilon is not None
        assert worst.cost is not None
        summary += largest_epsilon(worst.epsilon, cluster.delta)
        promises = statements(
            terms.mode,
            terms.unit,
            worst.cost,
            len(worst.coins),
            worst.epsilon,
            cluster.delta,
            evaluations=len(worst.experiments) - len(worst.coins),
        )
    report = Report(
        title=f"Report of {terms.experiment}",
        subtitle=f"A federation of {len(clients)} clients on one machine",
        insecure=insecure,
        summary=summary,
        promises=promises,
        caveats=caveats(terms.mode, terms.unit),
        figures=figures,
        terms=[
            Statement(question="data", answer=settings.test_data or _NONE),
            Statement(question="clients", answer=_sizes(clients, terms.unit)),
            *describe_terms(terms),
        ],
        clients=[client_line(client, terms.unit) for client in clients] if private else [],
        loading=how_to_load(cluster.folder / MODEL),
    )
    return write_report(report, cluster.folder)


def report_server_run(settings: Settings) -> Path:
    """Write what a server knows of its run, which is nothing of any client's ε."""
    terms, rows = settings.terms, read_metrics(settings.state)
    figures = _server_figures(settings, rows)
    if not terms.mode.answers_always:
        figures += _seen_counts(terms, rows)
    report = Report(
        title=f"Report of {terms.experiment}",
        subtitle="A federation of separate machines, as its server saw it",
        insecure=settings.insecure_seed is not None or any(row.get("insecure") for row in rows),
        summary=_summary(terms, rows),
        promises=_public_guarantee(terms),
        caveats=caveats(terms.mode, terms.unit),
        figures=figures,
        terms=[
            Statement(question="public test data", answer=settings.test_data or _NONE),
            *describe_terms(terms),
        ],
        loading=how_to_load(settings.state / MODEL),
    )
    return write_report(report, settings.state)


def caveats(mode: Mode, unit: Unit) -> list[str]:
    """Return what the guarantee of a mode, for a unit, leaves out."""
    if not mode.is_private:
        return []
    return [
        *[mode.facts.caveat] * bool(mode.facts.caveat),
        *[THIS_PAGE] * mode.hides_coins,
        unit.facts.caveat,
        OTHER_USES,
    ]


def _summary(terms: Terms, rows: Sequence[dict[str, Any]]) -> list[Statement]:
    measured = measured_rounds(rows)
    last = rows[-1]["round"] if rows else 0
    return [
        *describe_metrics(measured[-1][1] if measured else None),
        *_private(rows),
        Statement(question="Rounds", answer=f"{last:,} of {terms.rounds:,}"),
        Statement(question="Mode", answer=str(terms.mode)),
    ]


def _private(rows: Sequence[dict[str, Any]]) -> list[Statement]:
    found = last_private(rows)
    if found is None:
        return []
    answer = f"{private_sentence(found[1])} (two standard errors), after round {found[0]:,}"
    return [Statement(question="On clients’ own records", answer=answer)]


def _server_figures(settings: Settings, rows: Sequence[dict[str, Any]]) -> list[Figure]:
    if settings.test_data is None:
        return []
    return [
        metric_figure(
            measured_rounds(rows), on=f"the test part of {settings.test_data}, which is public"
        )
    ]


def _seen_counts(terms: Terms, rows: Sequence[dict[str, Any]]) -> list[Figure]:
    """Draw what the server saw: how many were asked, and the batch that makes on average."""
    return _counts(
        terms,
        [(float(row["round"]), float(row["participants"])) for row in rows],
        [(float(row["round"]), row["expected_batch"]) for row in rows],
    )


def _local_counts(
    terms: Terms, rows: Sequence[dict[str, Any]], clients: Sequence[ClientRecord]
) -> list[Figure]:
    """As the server saw it; in mode untrusted it saw nothing, but the ledgers lie here."""
    if not terms.mode.answers_always:
        return _seen_counts(terms, rows)
    took_part = {
        row["round"]: [client for client in clients if client.coins.get(row["round"])]
        for row in rows
    }
    return _counts(
        terms,
        [(float(round_), float(len(some))) for round_, some in took_part.items()],
        [
            (float(round_), terms.q * sum(client.size for client in some))
            for round_, some in took_part.items()
        ],
    )


def _counts(terms: Terms, took_part: Sequence[Point], batches: Sequence[Point]) -> list[Figure]:
    return [
        count_figure(
            "participants",
            "Clients that took part, per round",
            "clients",
            took_part,
            caption=took_part_caption(terms.p),
        ),
        count_figure(
            "batch",
            "Batch size, per round",
            f"{terms.unit}s",
            batches,
            caption="Expected, given who took part: q times their declared sizes. "
            f"The number of {terms.unit}s actually drawn never leaves a client.",
        ),
    ]


def _sizes(clients: Sequence[ClientRecord], unit: Unit) -> str:
    sizes = [client.size for client in clients]
    least, most = min(sizes), max(sizes)
    each = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    return f"{len(sizes):,} with {each} {unit}s each"


def _public_guarantee(terms: Terms) -> list[Statement]:
    scheme = terms.mode.scheme
    if scheme is None:
        return []
    return [
        *who_is_protected(terms.mode, terms.unit),
        Statement(
            question="At what ε and δ",
            answer="only each client's own ledger knows, no server: it depends on the client's "
            "size, its δ, and the rounds it heard of. "
            f"For d {terms.unit}s: coinflower epsilon "
            f"--scheme {scheme.name} -p {terms.p:g} -q {terms.q:g} -d d "
            f"{f'--cap {terms.cap!r} ' if terms.is_capped else ''}"
            f"--sigma {terms.noise_multiplier!r} --rounds {terms.rounds} --delta δ",
        ),
        Statement(
            question="By which analysis",
            answer=f"{scheme.title} (scheme {scheme.name}): {ANALYSES[scheme.name]}",
        ),
    ]
