"""The commands that say what a run costs, as a user calls them."""

import json
import subprocess

import pytest
from typer.testing import CliRunner

from coinflower.accounting.analyses.names import SCHEMES
from coinflower.accounting.composition.calibration import Split
from coinflower.accounting.rounding import rounded_down, rounded_up
from coinflower.cli.main import app
from coinflower.protocol.planning import planner

SCENARIO_1 = "-p 0.001 -q 0.1 -d 30"
SCENARIO_2 = "-p 0.1 -q 0.001 -d 1000"
SMALL = "-p 0.1 -q 0.1 -d 3"


@pytest.fixture
def run(program):
    """Return a function that runs a command as a user's shell would see it."""
    return lambda words: subprocess.CompletedProcess(words, *program(*words.split()))


def call(arguments):
    """Run a command in this process; what it raises comes up here."""
    result = CliRunner().invoke(app, arguments.split(), catch_exceptions=False)
    assert result.exit_code == 0
    return result


def figures(arguments):
    return json.loads(call(f"{arguments} --json").stdout)


def test_epsilon_of_ten_thousand_rounds(run):
    done = run(f"epsilon {SCENARIO_1} --sigma 2.4903 --delta 1e-5 --rounds 10000 --json")
    assert done.returncode == 0
    assert done.stderr == ""
    assert json.loads(done.stdout)["epsilon"] == pytest.approx(0.273, abs=0.002)


@pytest.mark.parametrize(
    ("question", "value", "within"),
    [
        (f"epsilon {SCENARIO_1} --sigma 2.4903 --delta 1e-5 --rounds 10000 --cap 3", 0.0318, 6e-4),
        (f"delta {SCENARIO_1} --sigma 1.0982 --epsilon 0.015 --cap 2", 1e-6, 1e-9),
        (f"sigma {SCENARIO_1} --epsilon 0.015 --delta 1e-6 --cap 2", 1.098, 0.002),
        (f"sigma {SCENARIO_1} --epsilon 0.015 --delta 1e-6 --cap 1", 0.5674, 0.001),
        (f"sigma {SCENARIO_2} --epsilon 0.015 --delta 1e-6 --cap 1.5", 0.723, 0.001),
    ],
)
def test_a_cap_lowers_what_is_lost(question, value, within):
    asked, found = question.split()[0], figures(question)
    assert found[asked] == pytest.approx(value, abs=within)
    assert found["cap"] == float(question.split()[-1])
    assert found["upper_bound"] is True
    assert found[asked] < figures(question.split(" --cap")[0])[asked]


def test_a_cap_lets_more_rounds_fit():
    question = "rounds -p 0.1 -q 0.05 -d 500 --sigma 1.2 --epsilon 2 --delta 1e-5"
    assert figures(f"{question} --cap 1.5")["rounds"] > figures(question)["rounds"]


def test_compare_under_a_cap_leaves_out_what_knows_none():
    found = figures(f"compare {SCENARIO_1} --epsilon 0.015 --delta 1e-6 --cap 2")
    rows = {row["scheme"]: row["sigma"] for row in found["schemes"]}
    assert list(rows) == ["certified", "wcs", "ols", "cs", "realised"]
    assert rows["cs"] < rows["realised"] < rows["certified"] == pytest.approx(1.098, abs=0.002)


@pytest.mark.parametrize(
    ("known", "asked"), [("--delta 1e-5", "epsilon"), ("--epsilon 1", "delta")]
)
def test_compare_says_what_the_client_as_a_whole_loses(known, asked):
    question = f"compare -p 0.1 -q 0.05 -d 50 --sigma 2 {known} --rounds 20"
    found, capped = figures(question), figures(f"{question} --cap 1")
    record = next(row[asked] for row in found["schemes"] if row["scheme"] == "certified")
    assert record < capped["whole_client"] < found["whole_client"]
    shown = call(question).stdout
    assert f"for the client as a whole, all its records at once: {asked} =" in " ".join(
        shown.split()
    )


@pytest.mark.parametrize("arguments", ["--cap 0.5", "--cap nan", "--cap 2 --scheme paper"])
def test_a_cap_that_means_nothing_is_refused(run, arguments):
    done = run(f"epsilon {SCENARIO_1} --sigma 1 --delta 1e-5 {arguments}")
    assert done.returncode == 2
    assert "cap" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_epsilon_without_other_elements():
    found = figures("epsilon -p 0.1 -q 0.1 -d 0 --sigma 1 --delta 1e-6 --rounds 1000")
    assert found["epsilon"] == pytest.approx(2.12452, abs=0.002)


@pytest.mark.parametrize(
    ("scenario", "scheme", "sigma", "within"),
    [
        (SCENARIO_1, "certified", 2.3733, 0.002),
        (SCENARIO_1, "paper", 1.065, 0.002),
        (SCENARIO_1, "wcs", 7.665, 0.02),
        (SCENARIO_1, "ols", 22.50, 0.06),
        (SCENARIO_1, "cs", 0.567, 0.0017),
        (SCENARIO_2, "certified", 0.8087, 0.001),
        (SCENARIO_2, "paper", 0.646, 0.0019),
        (SCENARIO_2, "wcs", 0.874, 0.0026),
        (SCENARIO_2, "ols", 1.104, 0.0033),
        (SCENARIO_2, "cs", 0.567, 0.0017),
    ],
)
def test_noise_of_both_scenarios(scenario, scheme, sigma, within):
    found = figures(f"sigma {scenario} --epsilon 0.015 --delta 1e-6 --rounds 1 --scheme {scheme}")
    assert found["sigma"] == pytest.approx(sigma, abs=within)


@pytest.mark.parametrize(
    ("question", "asked"),
    [
        (f"epsilon {SMALL} --sigma 1.5 --delta 1e-5 --rounds 2", "epsilon"),
        (f"delta {SMALL} --sigma 1.5 --epsilon 0.5", "delta"),
        (f"sigma {SMALL} --epsilon 0.5 --delta 1e-5", "sigma"),
        (f"rounds {SMALL} --sigma 1.5 --epsilon 0.6 --delta 1e-5", "rounds"),
    ],
)
def test_an_answer_names_figures_and_inputs(question, asked):
    found = figures(question)
    keys = ["epsilon", "delta", "sigma", "rounds", "scheme", "p", "q", "d", "upper_bound"]
    assert list(found)[:9] == keys
    assert (found["scheme"], found["p"], found["q"], found["d"]) == ("certified", 0.1, 0.1, 3)
    assert found["upper_bound"] is True
    unit = "delta" if asked == "delta" else "epsilon"
    assert 0 < found[f"realised_{unit}"] <= found[unit]


def test_people_get_the_same_figures_in_words():
    told = call(f"epsilon {SMALL} --sigma 1.5 --delta 1e-5").stdout
    exact = figures(f"epsilon {SMALL} --sigma 1.5 --delta 1e-5")
    assert f"epsilon = {rounded_up(exact['epsilon'], 6)}   (" in told
    assert f"some data set loses ε ≥ {rounded_down(exact['realised_epsilon'], 6)};" in told


@pytest.mark.parametrize("scheme", ["paper", "printed"])
def test_what_is_no_upper_bound_says_so(run, scheme):
    done = run(f"epsilon {SMALL} --sigma 1.5 --delta 1e-5 --scheme {scheme} --json")
    assert done.returncode == 0
    assert "not an upper bound" in done.stderr
    found = json.loads(done.stdout)
    assert found["warning"] == "not an upper bound"
    assert found["upper_bound"] is False


def test_the_ideal_says_that_it_bounds_no_clients_loss(run):
    done = run(f"epsilon {SMALL} --sigma 1.5 --delta 1e-5 --scheme cs --json")
    assert done.returncode == 0
    assert "'cs' is not an upper bound for a client of a federation" in done.stderr
    found = json.loads(done.stdout)
    assert found["warning"] == "not an upper bound for a client of a federation"


@pytest.mark.parametrize("command", ["epsilon", "delta", "sigma", "rounds", "plan"])
def test_help_marks_both_schemes_of_the_paper(command):
    shown = " ".join(call(f"{command} --help").stdout.replace("│", " ").split())
    assert "the paper, as plotted (not an upper bound)" in shown
    assert "the paper's theorem, as printed (not an upper bound)" in shown


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (f"epsilon -p 0 {SMALL[7:]} --sigma 1 --delta 1e-5", ("p = 0", "(0, 1]")),
        (f"epsilon -p 1.5 {SMALL[7:]} --sigma 1 --delta 1e-5", ("p = 1.5", "(0, 1]")),
        (f"epsilon -p nan {SMALL[7:]} --sigma 1 --delta 1e-5", ("p = nan", "(0, 1]")),
        ("epsilon -p 0.1 -q -0.2 -d 3 --sigma 1 --delta 1e-5", ("q = -0.2", "(0, 1]")),
        ("epsilon -p 0.1 -q 2 -d 3 --sigma 1 --delta 1e-5", ("q = 2", "(0, 1]")),
        (f"epsilon {SMALL} --sigma 0 --delta 1e-5", ("= 0.0", "above 0")),
        (f"epsilon {SMALL} --sigma -1 --delta 1e-5", ("= -1.0", "above 0")),
        (f"epsilon {SMALL} --sigma nan --delta 1e-5", ("= nan", "above 0")),
        (f"epsilon {SMALL} --sigma 1e-9 --delta 1e-5", ("= 1e-09", "at least 1e-06")),
        ("epsilon -p 0.1 -q 0.1 -d -1 --sigma 1 --delta 1e-5", ("d = -1", "at least 0")),
        ("epsilon -p 0.1 -q 0.1 -d 1.5 --sigma 1 --delta 1e-5", ("'-d'", "'1.5'", "integer")),
        (f"epsilon {SMALL} --sigma 1 --delta 0", ("delta = 0.0", "between 0 and 1")),
        (f"epsilon {SMALL} --sigma 1 --delta 1", ("delta = 1.0", "between 0 and 1")),
        (f"epsilon {SMALL} --sigma 1 --delta nan", ("delta = nan", "between 0 and 1")),
        (f"epsilon {SMALL} --sigma 1 --delta 1e-5 --rounds -2", ("rounds = -2", "at least 0")),
        (f"epsilon {SMALL} --sigma 1 --delta 1e-5 --scheme best", ("'best'", "certified, wcs")),
        (f"delta {SMALL} --sigma 1 --epsilon -1", ("epsilon = -1.0", "at least 0")),
        (f"delta {SMALL} --sigma 1 --epsilon nan", ("epsilon = nan", "at least 0")),
        (f"sigma {SMALL} --epsilon 1 --delta 1e-5 --rounds 0", ("rounds = 0", "at least 1")),
        (
            "sigma -p 1 -q 1 -d 1 --epsilon 0 --delta 1e-9",
            ("No noise multiplier up to 1e+06", "allow a larger epsilon"),
        ),
        (
            "rounds -p 0.9 -q 0.9 -d 5 --sigma 0.5 --epsilon 0.1 --delta 1e-6",
            ("Not even one round fits", "epsilon = 0.1 is allowed"),
        ),
        (f"compare {SMALL} --sigma 1", ("exactly two",)),
        (f"compare {SMALL} --sigma 1 --epsilon 1 --delta 1e-5", ("exactly two",)),
        (
            "plan --batch 3000 --clients 50 -d 40 --epsilon 1 --delta 1e-5 --rounds 10",
            ("3000", "2000 records in all"),
        ),
        (f"epsilon {SMALL} --sigma 1 --delta 1e-5 --plot curve.txt", ("curve.txt", ".png")),
        (f"epsilon {SMALL} --sigma 1 --delta 1e-5 --plot /no/such/folder/x.png", ("/no/such",)),
    ],
)
def test_bad_input_is_told_in_one_sentence(run, arguments, named):
    done = run(arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("Error: ")
    assert sentence.endswith(".")
    for part in named:
        assert part in sentence


def test_without_a_command_it_helps(run):
    done = run("")
    assert done.returncode == 2
    assert "Usage: coinflower" in done.stdout + done.stderr


@pytest.mark.parametrize(
    "question",
    [
        f"epsilon {SMALL} --sigma 1.5 --delta 1e-5 --rounds 20",
        f"delta {SMALL} --sigma 1.5 --epsilon 0.5",
        f"sigma {SMALL} --epsilon 0.5 --delta 1e-5",
        f"rounds {SMALL} --sigma 2 --epsilon 0.6 --delta 1e-5",
        f"compare {SMALL} --sigma 1.5 --delta 1e-5",
    ],
)
def test_plots_are_drawn(tmp_path, question):
    for name, opening in (("curve.png", b"\x89PNG"), ("curve.svg", b"<?xml")):
        call(f"{question} --plot {tmp_path / name}")
        assert (tmp_path / name).read_bytes().startswith(opening)


def test_a_plot_says_what_is_no_upper_bound(tmp_path, monkeypatch):
    import matplotlib as mpl

    monkeypatch.setitem(mpl.rcParams, "svg.fonttype", "none")
    call(f"compare {SMALL} --sigma 1.5 --epsilon 0.5 --plot {tmp_path / 'all.svg'}")
    drawn = (tmp_path / "all.svg").read_text()
    for kind in SCHEMES.values():
        assert kind.title in drawn.replace("&#x27;", "'")
    assert "realised by a concrete data set (lower bound)" in drawn
    assert drawn.count("not an upper bound") == 2


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("--sigma 1.5 --delta 1e-5", "epsilon"),
        ("--sigma 1.5 --epsilon 0.2", "delta"),
        ("--epsilon 0.5 --delta 1e-5", "sigma"),
    ],
)
def test_compare_puts_all_schemes_and_the_realised_bound_side_by_side(given, asked):
    found = figures(f"compare {SCENARIO_1} {given}")
    assert found["asked"] == asked
    assert found[asked] is None
    rows = {row["scheme"]: row for row in found["schemes"]}
    assert list(rows) == [*SCHEMES, "realised"]
    value = {name: row[asked] for name, row in rows.items()}
    ordered = [value[name] for name in ("cs", "realised", "certified", "wcs", "ols")]
    assert ordered == sorted(ordered)
    # All gradients alike is a data set, too: the lower bound is at least what it loses.
    assert value["realised"] >= value["printed"] * (1 - 1e-3)
    bounds = {name for name, row in rows.items() if row["upper_bound"]}
    assert bounds == {"certified", "wcs", "ols", "cs"}


def test_compare_over_many_rounds():
    found = figures(f"compare {SMALL} --epsilon 1 --delta 1e-5 --rounds 50")
    value = {row["scheme"]: row["sigma"] for row in found["schemes"]}
    assert value["cs"] <= value["realised"] <= value["certified"] <= value["wcs"] <= value["ols"]


def test_the_table_of_compare_marks_what_is_no_upper_bound():
    shown = call(f"compare {SMALL} --sigma 1.5 --delta 1e-5").stdout
    assert "realised" in shown
    assert " ".join(shown.split()).count("not an upper") == 2


def test_plan_offers_splits_with_the_least_noise_first():
    question = "plan --batch 20 --clients 50 -d 40 --epsilon 1 --delta 1e-5 --rounds 10"
    found = figures(f"{question} --largest-p 0.2")
    keys = {"p", "q", "sigma", "epsilon", "delta", "rounds", "scheme", "d", "batch", "clients"}
    assert keys <= found.keys()
    splits = found["splits"]
    assert [split["sigma"] for split in splits] == sorted(split["sigma"] for split in splits)
    assert {key: splits[0][key] for key in ("p", "q", "sigma")} == {
        key: found[key] for key in ("p", "q", "sigma")
    }
    for split in splits:
        assert split["p"] <= 0.2
        assert split["p"] * split["q"] * 50 * 40 == pytest.approx(20)
        assert split["epsilon"] <= 1


def test_plan_prints_a_table_and_warns(monkeypatch):
    monkeypatch.setattr(
        planner,
        "splits_for_batch",
        lambda *_, **__: [Split(p=0.5, q=0.02, sigma=1.25, epsilon=0.99)],
    )
    done = call(
        "plan --batch 20 --clients 50 -d 40 --epsilon 1 --delta 1e-5 --rounds 10 --scheme paper"
    )
    assert "1.25" in done.stdout
    assert "noise / signal" in done.stdout
    assert "not an upper bound" in done.stderr


def test_infinite_figures_become_null():
    from coinflower.cli.output import _plain

    assert _plain({"epsilon": float("inf"), "rows": [{"sigma": float("nan")}]}) == {
        "epsilon": None,
        "rows": [{"sigma": None}],
    }


VISIBLE = "-p 0.1 -q 0.05 -d 500"
HIDDEN = "-p 0.001 -q 0.1 -d 30"


@pytest.mark.parametrize(
    "question",
    [
        "epsilon {} --sigma 1.3 --delta 1e-5 --rounds 1000",
        "delta {} --sigma 1.2 --epsilon 2 --rounds 608",
        "sigma {} --epsilon 2 --delta 1e-5 --rounds 1000",
        "rounds {} --sigma 1.2 --epsilon 2 --delta 1e-5",
        "compare {} --sigma 1.2 --delta 1e-5 --rounds 1000",
        "compare {} --sigma 1.2 --epsilon 2 --rounds 608",
    ],
)
def test_a_coin_whose_secrecy_buys_nothing_is_said_so(question):
    shown = call(question.format(VISIBLE)).stdout
    assert "Secrecy of the coin buys nothing here" in shown
    assert figures(question.format("-p 1 -q 0.005 -d 500"))["secret_coin_pays"] is False
    assert figures(f"{question.format(VISIBLE)} --cap 2")["secret_coin_pays"] is True


def test_the_rounds_that_fit_are_compared_as_they_are():
    found = figures(f"rounds {HIDDEN} --sigma 2 --epsilon 0.2 --delta 1e-6")
    seen = figures(f"rounds {HIDDEN} --sigma 2 --epsilon 0.2 --delta 1e-6 --scheme wcs")
    assert found["rounds"] > seen["rounds"]
    assert found["secret_coin_pays"] is True
    assert "secret_coin_pays" not in seen
