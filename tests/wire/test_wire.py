"""Does a real federation tell who took part? A short observation; ``make wire`` is the long one.

Each verdict is wrong about honest clients once in 10⁴ runs.
"""

import pytest
from judge import judge
from observed import observe
from views import network_view, server_view

from protocol import messages
from protocol.terms import Mode

KINDS = [*["honest"] * 3, *["early reply"] * 2, *["shared filler"] * 2]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Return what 30 rounds of mode untrusted showed of honest and of faulty clients."""
    return observe(tmp_path_factory.mktemp("wire"), Mode.UNTRUSTED, KINDS, rounds=30)


@pytest.mark.parametrize("view", [server_view, network_view])
def test_clients_as_shipped_do_not_show_their_coins(seen, view):
    found = judge(view(seen))
    assert not found.leaks, found


@pytest.mark.parametrize("view", [server_view, network_view])
def test_a_client_that_skips_the_work_is_found_out(seen, view):
    found = judge(view(seen, "early reply"))
    assert found.leaks, found


def test_a_client_that_repeats_its_filler_is_found_out(seen):
    found = judge(server_view(seen, "shared filler"))
    assert found.leaks, found


def test_all_answers_have_the_same_fields_and_sizes_and_state_no_running_time(seen):
    sums = seen.sums()
    assert {one.node for one in sums} == set(seen.nodes)
    assert {tuple(one.answer) for one in sums} == {(messages.SUM, messages.SALT)}
    assert len({max(one.sizes) for one in sums}) == 1
    assert {one.wanted for one in sums} == {3}
    assert {one.runtime for one in sums} == {0.0}
