"""How reliably a quick audit finds each fault: audits of faulty code, again and again.

Run with ``python -m tools.audit_power 20``, and the names of faults if not all are wanted; prints
a table in Markdown. Each fault is looked for by the one part of the quick plan that is meant to
find it, and each claim is judged with the error probability that it has in the whole plan.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from typing import Any

from coinflower.experiments.audit.audit import (
    FALSE_ALARM,
    Plan,
    capped_client,
    conspired_against,
    persons,
    rare_participation,
    run_audit,
    single_client,
    standard_plan,
    twin,
    under_masks,
)
from coinflower.experiments.audit.faults import FAULTS
from coinflower.experiments.audit.one_run import Training
from coinflower.experiments.audit.settings import Setting
from coinflower.protocol.modes import Mode


def part_for(fault: str, plan: Plan) -> Plan:
    """Return the part of a plan that is meant to find a fault."""
    settings: dict[str, Setting] = {
        "less-noise": _setting(plan, Mode.LOCAL_ONLY, "across"),
        "no-clipping": _setting(plan, Mode.TRUSTED, "angled"),
        "clipping-rows": persons(Mode.TRUSTED),
        "no-cap": capped_client(Mode.UNTRUSTED),
        "larger-coin": _setting(plan, Mode.QUIET, "across"),
        "telling-coin": _setting(plan, Mode.TRUSTED, "across"),
        "fixed-size": single_client(),
        "shared-noise": twin(),
        "float-sums": conspired_against(),
        "reused-mask": under_masks(),
        "paper-noise": rare_participation(),
    }
    if fault in settings:
        return Plan(settings=(settings[fault],), trainings=())
    training: Training = next(one for one in plan.trainings if one.mode is Mode.TRUSTED)
    return Plan(settings=(), trainings=(training,))


def _setting(plan: Plan, mode: Mode, geometry: str) -> Setting:
    return next(one for one in plan.settings if (one.mode, one.geometry) == (mode, geometry))


def try_fault(fault: str, times: int) -> tuple[int, list[dict[str, Any]]]:
    """Return in how many audits a fault was found, and the claim of each that fared worst."""
    whole = standard_plan(full=False)
    part = part_for(fault, whole)
    worst = []
    for _ in range(times):
        figures = run_audit(part, fault=fault, false_alarm=FALSE_ALARM / whole.claims * part.claims)
        worst.append(
            max(figures["claims"], key=lambda one: one["audited_epsilon"] - one["claimed_epsilon"])
        )
    return sum(not claim["holds"] for claim in worst), worst


def main(times: int, faults: Sequence[str]) -> None:
    """Print the table."""
    print("| `--fault` | found | the claim that fared worst | δ | claimed ε | proven ε |")
    print("|---|---|---|---|---|---|")
    for fault in faults:
        found, worst = try_fault(fault, times)
        proven = [claim["audited_epsilon"] for claim in worst]
        spread = statistics.stdev(proven) if times > 1 else 0.0
        print(
            f"| `{fault}` | {found} of {times} | {worst[0]['name']} | {worst[0]['delta']:g} "
            f"| {worst[0]['claimed_epsilon']:.3f} | {statistics.mean(proven):.3f} ± {spread:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10, sys.argv[2:] or list(FAULTS))
