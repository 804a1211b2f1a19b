"""The long observation: who can tell who took part, in which mode, and what covering it costs.

Run as ``python report.py [ROUNDS]``; prints tables in Markdown. Exit code 1 if a coin is told that
should not be, or a planted leak is not found.
"""

import sys
import tempfile
from pathlib import Path

from coinflower.protocol.modes import Mode
from tests.wire.judge import judge
from tests.wire.observed import observe
from tests.wire.views import co_client_view, network_view, notary_view, server_view

CLIENTS = 4
_LEAKS = ("early reply", "shared filler", "bare filler")
_MASKED_LEAKS = ("early reply", "shared mask", "no echo")
# Rounds wait for the first: when a notary is asked depends on it.
_SLOWEST_LEAKS = ("slowest's early reply", "honest", "honest")
# Two clients of different speed, and one that would like to know which of them takes part.
_WATCHED = ("curious", "honest", "slower")
_SHORT = 100
_ROUND_SECONDS = 1.5


def main(rounds=400):
    short = min(rounds, _SHORT)
    honest = ["honest"] * CLIENTS
    print("| mode | clients | observer | AUC, 99 % interval | p-value | coins tried | detected? |")
    print("|---|---|---|---|---|---|---|", flush=True)
    results = []
    seen = _observe(Mode.UNTRUSTED, honest, rounds)
    results.append(_row(seen, "honest", "server", server_view, False))
    results.append(_row(seen, "honest", "network", network_view, False))
    seen = _observe(Mode.UNTRUSTED, _LEAKS, short)
    results.append(_row(seen, "early reply", "server", server_view, True))
    results.append(_row(seen, "early reply", "network", network_view, True))
    results.append(_row(seen, "shared filler", "server", server_view, True))
    results.append(_row(seen, "bare filler", "server", server_view, True))
    seen = _observe(Mode.MASKED, honest, rounds)
    results.append(_row(seen, "honest", "server", server_view, False))
    results.append(_row(seen, "honest", "notary", notary_view, False))
    results.append(_row(seen, "honest", "network", network_view, False))
    seen = _observe(Mode.MASKED, _MASKED_LEAKS, short)
    results.append(_row(seen, "early reply", "server", server_view, True))
    results.append(_row(seen, "early reply", "network", network_view, True))
    results.append(_row(seen, "early reply", "notary", notary_view, None))  # as rounds may last
    results.append(_row(seen, "shared mask", "server", server_view, True))
    results.append(_row(seen, "no echo", "notary", notary_view, True))
    seen = _observe(Mode.MASKED, _SLOWEST_LEAKS, short)
    results.append(_row(seen, "slowest's early reply", "notary", notary_view, True))
    trusted = _observe(Mode.TRUSTED, honest, short)
    results.append(_row(trusted, "honest", "network", network_view, True))
    covered = _observe(Mode.COVERED, honest, short)
    results.append(_row(covered, "honest", "network", network_view, False))
    costs = [trusted, covered]
    for mode, pace, told in (
        (Mode.TRUSTED, None, True),
        (Mode.TRUSTED, _ROUND_SECONDS, False),
        (Mode.COVERED, None, False),
    ):
        watched = _observe(mode, _WATCHED, short, pace)
        results.append(_row(watched, "others", "co-client", co_client_view, told))
        costs.append(watched)
    print("\n| mode | clients | kB up per client and round | kB down | seconds per round |")
    print("|---|---|---|---|---|")
    for seen in costs:
        print(_cost(seen))
    return 0 if all(results) else 1


def _observe(mode, kinds, rounds, round_seconds=None):
    with tempfile.TemporaryDirectory() as folder:
        return observe(Path(folder), mode, kinds, rounds=rounds, round_seconds=round_seconds)


def _row(seen, kind, observer, view, expected):
    found = judge(view(seen) if view is co_client_view else view(seen, kind))
    told = "yes" if found.leaks else "no"
    right = expected in (None, found.leaks)
    count = seen.kinds.count(kind) or len(seen.kinds) - 1
    print(
        f"| {_mode(seen)} | {count} {kind} | {observer} "
        f"| {found.auc:.3f}, {found.low:.3f} to {found.high:.3f} | {found.p_value:.2g} "
        f"| {found.tried} | {told}{'' if right else ', which is WRONG'} |",
        flush=True,
    )
    return right


def _mode(seen):
    return f"{seen.mode}" + (f", every {seen.round_seconds:g} s" if seen.round_seconds else "")


def _cost(seen):
    starts = list(seen.rounds_asked().items())
    (first, began), (last, ended) = starts[0], starts[-1]
    passed = [one for line in seen.segments for one in line if began <= one.at < ended]
    count = (last - first) * len(seen.segments)
    up, down = (sum(one.size for one in passed if one.up is way) / 1e3 for way in (True, False))
    seconds = (ended - began) / (last - first)
    clients = "4 honest" if "curious" not in seen.kinds else ", ".join(seen.kinds)
    return f"| {_mode(seen)} | {clients} | {up / count:.1f} | {down / count:.1f} | {seconds:.2f} |"


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
