"""A small federation under one fault after the other."""

import random
from dataclasses import replace

import pytest

from coinflower.protocol.modes import Mode
from tests.soak.dishonest import KINDS
from tests.soak.faults import all_faults, make_clocks
from tests.soak.invariants import BACKED, OPENED_ONCE, THRESHOLD, check, check_named
from tests.soak.soak import Soak, processes_left
from tests.soak.world import World
from tests.support.federations import plan

pytestmark = pytest.mark.soak

FAULTS = {
    Mode.TRUSTED: [
        "client machine killed",
        "client machine: files cannot grow",
        "client machine: clock jumps",
        "server: network cut",
    ],
    Mode.MASKED: [
        "notary killed",
        "client machine killed",
        "notary: files cannot grow",
        "notary: clock jumps",
        "notary: network cut",
        "ServerApp killed",
        "notary killed",
    ],
}


@pytest.mark.parametrize("mode", FAULTS, ids=str)
def test_whatever_breaks_the_run_goes_on_and_the_ledgers_hold(tmp_path, mode):
    clocks = make_clocks(tmp_path)
    faults = {fault.name: replace(fault, seconds=(1.0, 1.0)) for fault in all_faults(clocks)}
    world = World(plan(clients=2, rounds=2000), [mode], 1, tmp_path, clocks)
    soak = Soak(world, [], "unused")
    try:
        soak.calm(0.0)
        for name in FAULTS[mode]:
            if name in faults:
                assert soak.inject(faults[name], random.Random(name)), name
                soak.calm(0.0)
    finally:
        world.stop()
    protocol = check(world.cluster, world.settings, strangers=len(KINDS))
    if not mode.masks_sums:  # there strangers are asked for nothing
        check_named(protocol, world.server_log)
    found = protocol.invariants()
    assert [violation for one in found for violation in one.violations] == []
    assert all(injection.survived(world) for injection in soak.injections)
    assert not mode.masks_sums or {THRESHOLD, BACKED, OPENED_ONCE} <= {one.name for one in found}
    assert not processes_left(tmp_path)
