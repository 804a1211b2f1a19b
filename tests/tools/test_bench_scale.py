"""The benchmark of scale: what it fits, and what it writes."""

import pytest

from tools.bench import scale
from tools.bench.scale import (
    BEGIN,
    END,
    PAGE,
    Model,
    Outcome,
    Size,
    as_markdown,
    fit,
    fit_invitation,
)

TRUTH = Model(base=0.3, per_asked=0.08, per_enrolled=0.0001)


def outcome(clients, asked, *, model=TRUTH, invitation=0.05):
    return Outcome(
        size=Size(clients=clients, p=asked / clients, rounds=5),
        enrolled=clients,
        asked=asked,
        setting_up=9 + 2 * invitation * clients,
        seconds=model.seconds(asked, clients),
        cpu={"SuperLink": 1.0, "ServerApp": 0.5, "nodes": 0.25},
        memory={"SuperLink": 100.0, "ServerApp": 200.0, "nodes": 300.0},
    )


SERIES = [outcome(*pair) for pair in ((10, 5), (50, 25), (200, 100), (50, 5), (1000, 5))]


def test_the_fit_finds_the_costs_that_made_the_figures():
    found = fit(SERIES)
    assert found.base == pytest.approx(TRUTH.base)
    assert found.per_asked == pytest.approx(TRUTH.per_asked)
    assert found.per_enrolled == pytest.approx(TRUTH.per_enrolled)
    assert fit_invitation(SERIES) == pytest.approx(0.05)


def test_no_cost_is_negative():
    odd = [outcome(10, 5), outcome(1000, 5, model=Model(base=0, per_asked=0.08, per_enrolled=0))]
    assert fit(odd).per_enrolled == 0


def test_the_table_is_put_in_place_of_the_one_that_was_there(tmp_path, monkeypatch):
    page = tmp_path / "scale.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    monkeypatch.setattr(scale, "PAGE", page)
    for _ in range(2):
        scale.write_page(SERIES, "a machine")
    text = page.read_text()
    assert text == f"before\n{BEGIN}\n{as_markdown(SERIES, 'a machine')}\n{END}\nafter\n"
    assert (
        "| 1,000 | 1,000 | 0.005 | 5.0 | 0.80 | 0.80 | 109 | 1.00 | 0.50 | 0.25 | 100 | 200 | 300 |"
        in text
    )


def test_the_page_has_a_place_for_the_table():
    assert PAGE.read_text().count(BEGIN) == PAGE.read_text().count(END) == 1
