"""How fast rounds go over a real local federation, and how little its nodes need.

Whole federations through the command line: resident nodes against stock Flower (its SuperNodes, and
its pause of 3 s between two looks for replies), blocks of ten invitations against single ones, and
from 10 to 200 nodes. CPU is that of all processes, beside what a bare ``/health`` request to a
SuperLink takes in the same run.

Run with ``python -m tools.bench.rounds``.
"""

from __future__ import annotations

from typing import Any

from tools.bench.federations import CLIENTS, Watched, cpu_of_a_health_request, watch

LEAST_SPEEDUP_OVER_STOCK = 35.0
LEAST_SPEEDUP_OF_BLOCKS = 1.5
MOST_MEMORY_MB = 1000.0
MOST_REQUESTS_AN_ANSWER = 32.0
"""An answer comes with two invitations at p = 0.5. Polls and a request for each object made 65."""
MOST_HEALTH_REQUESTS_AN_ANSWER = 37.0
"""Half of the 185 ms that an answer took then, at 2.5 ms for a request to ``/health``."""
NODES = (50, 100, 200)


def run() -> list[dict[str, Any]]:
    """Measure everything; see ``tools.bench.table`` for what the rows mean."""
    health = cpu_of_a_health_request()
    ours = _federation(clients=10, rounds=20, p=0.5)
    stock = _federation(10, 4, 0.5, extra=("--nodes", "stock", "--poll-seconds", "3"))
    single = _federation(clients=10, rounds=40, p=0.1)
    blocks = _federation(clients=10, rounds=40, p=0.1, block=10)
    many = {nodes: _federation(clients=nodes, rounds=4, p=0.5) for nodes in NODES}
    answers = ours.answers_a_round
    cpu = ours.a_round(ours.cpu) / answers
    memory = many[50].memory[CLIENTS]
    return [
        _at_least(
            "round of 10 nodes, p = 0.5, stock time / ours",
            stock.seconds / ours.seconds,
            LEAST_SPEEDUP_OVER_STOCK,
        ),
        _at_least(
            "round of 10 nodes, p = 0.1, K = 1 time / K = 10",
            single.seconds / blocks.seconds,
            LEAST_SPEEDUP_OF_BLOCKS,
        ),
        _row("round of 10 nodes, p = 0.5, K = 1, seconds", ours.seconds),
        *(
            row
            for nodes, seen in many.items()
            for row in (
                _row(f"round of {nodes} nodes, p = 0.5, K = 1, seconds", seen.seconds),
                _at_least(
                    f"part of {nodes} nodes that the first round counts on",
                    seen.rounds[0]["available"] / nodes,
                    1.0,
                ),
            )
        ),
        _row(
            "10 nodes, p = 0.5, HTTP requests of all / an answered gradient",
            ours.a_round(ours.requests) / answers,
            MOST_REQUESTS_AN_ANSWER,
        ),
        _row("10 nodes, p = 0.5, CPU of all processes / an answered gradient, seconds", cpu),
        _row(
            "10 nodes, p = 0.5, CPU of an answered gradient / CPU of a /health request",
            cpu / health,
            MOST_HEALTH_REQUESTS_AN_ANSWER,
        ),
        _row("50 resident nodes, peak memory of their process, MB", memory, MOST_MEMORY_MB),
    ]


def _row(measure: str, value: float, limit: float | None = None) -> dict[str, Any]:
    met = limit is None or value <= limit
    return {"measure": measure, "value": value, "limit": limit, "met": met}


def _at_least(measure: str, value: float, limit: float) -> dict[str, Any]:
    return {
        "measure": f"{measure} (at least)",
        "value": value,
        "limit": limit,
        "met": value >= limit,
    }


def seconds_per_round(*, clients: int, rounds: int, extra: tuple[str, ...]) -> float:
    """Return the mean seconds per round of a federation of the command line."""
    return _federation(clients, rounds, 0.5, extra=extra).seconds


def _federation(
    clients: int, rounds: int, p: float, block: int = 1, extra: tuple[str, ...] = ()
) -> Watched:
    options = ["--clients", str(clients), "--rounds", str(rounds), "-p", str(p)]
    options += ["--rounds-per-invite", str(block), "--sigma", "1", *extra]
    return watch([*options, "--evaluate-every", str(rounds)])


if __name__ == "__main__":
    for row in run():
        print(row)
