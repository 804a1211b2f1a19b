"""The benchmark table: what it shows, not how fast anything is."""

from rich.console import Console

from tools.bench.table import BENCHMARKS, as_cells, as_markdown, describe_machine, measured

ROWS = [
    {"measure": "time / bare", "value": 1.2345, "limit": 3.0, "met": True},
    {"measure": "charges (at least)", "value": 0.4, "limit": 0.5, "met": False},
    {"measure": "per second", "value": 23456.7, "limit": None, "met": None},
    {"samples": 70, "measure": "CPU time", "value": 0.2, "limit": 0.25, "met": True},
]


def test_a_row_shows_value_limit_and_verdict():
    assert as_cells(ROWS[0]) == ("time / bare", "1.23", "3", "yes")
    assert as_cells(ROWS[1]) == ("charges (at least)", "0.4", "0.5", "NO")


def test_a_figure_without_a_limit_has_no_verdict():
    assert as_cells(ROWS[2]) == ("per second", "23,457", "", "")


def test_the_batch_size_is_part_of_what_was_measured():
    assert as_cells(ROWS[3])[0] == "CPU time, n = 70"


def test_the_page_names_the_machine_and_holds_every_row():
    page = as_markdown(ROWS, "2 cores, a processor, 2030-01-01")
    assert "2 cores, a processor, 2030-01-01" in page
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(ROWS)
    assert table[0] == "| what | value | limit | met |"
    assert {line.count("|") for line in table} == {5}


def test_the_machine_is_described_by_cores_and_date():
    assert "cores, " in describe_machine()


def test_a_benchmark_that_fails_is_a_row_and_the_others_go_on(capsys):
    rows = measured("tools.no_such_benchmark", Console())
    assert [row["met"] for row in rows] == [False]
    assert as_cells(rows[0])[0] == "no_such_benchmark failed: ModuleNotFoundError"


def test_every_benchmark_listed_exists():
    import importlib

    for name in BENCHMARKS:
        assert callable(importlib.import_module(name).run)
