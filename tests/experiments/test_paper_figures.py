"""The paper's figures: what is drawn, and what is written beside it."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import pytest
from typer.testing import CliRunner

from coinflower.accounting.analyses.baselines import OnlyLocalSampling
from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.mechanism import Round
from coinflower.cli.main import app
from coinflower.experiments.paper import drawing as paper_drawing
from coinflower.experiments.paper import figures as paper_figures
from coinflower.experiments.paper.check_ins import check_in_curve

PROGRAM = Path(sys.executable).parent / "coinflower"
POINTS = paper_figures.load_points(None)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """One complete figure and the table of σ, drawn by the command."""
    out = tmp_path_factory.mktemp("paper") / "figures"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            paper_drawing, "FIGURES", {"delta_vs_sigma": paper_figures.FIGURES["delta_vs_sigma"]}
        )
        patch.setitem(mpl.rcParams, "svg.fonttype", "none")
        done = CliRunner().invoke(app, ["paper", "--out", str(out)], catch_exceptions=False)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        f"{what}: {out / name}.png, .svg, .csv"
        for what, name in (("Figure 1", "delta_vs_sigma"), ("Table of σ", "sigma_table"))
    ]
    return out


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_figure_of_sections_5_2_to_5_5_is_there():
    assert list(paper_figures.FIGURES) == [
        "eps_vs_delta",
        "eps_vs_sigma",
        "delta_vs_sigma",
        "comparison_with_literature",
        "p_q_trade_off",
    ]


def test_pictures_come_as_png_and_svg(drawn):
    for name in ("delta_vs_sigma", "sigma_table"):
        assert (drawn / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (drawn / f"{name}.svg").read_text().startswith("<?xml")


def test_the_csv_holds_the_papers_own_points(drawn):
    rows = [row for row in rows_of(drawn / "delta_vs_sigma.csv") if row["source"] != "computed"]
    written = {(row["curve"], float(row["σ"]), float(row["δ"])) for row in rows}
    curves = POINTS["fig:delta_vs_sigma"]["curves"]
    assert written == {
        (curve, x, y) for curve, points in curves.items() for x, y in points if y > 1e-15
    }


def test_the_csv_holds_our_curves_in_order(drawn):
    rows = [row for row in rows_of(drawn / "delta_vs_sigma.csv") if row["source"] == "computed"]
    value = {(row["curve"], float(row["σ"])): float(row["δ"]) for row in rows}
    assert {curve for curve, _ in value} == {"ols", "wcs", "cs"} | {
        f"{scheme} d={d}" for scheme in ("certified", "paper", "realised") for d in (1, 10, 30, 100)
    }
    terms = Certified(Round(p=0.1, q=0.1, d=10, noise_multiplier=0.5))
    assert value["certified d=10", 0.5] == terms.delta(1.0)
    for (curve, sigma), lower in value.items():
        if curve.startswith("realised"):
            assert lower <= value[curve.replace("realised", "certified"), sigma] * (1 + 1e-6)


def test_legend_and_caption_say_what_does_not_hold_and_why(drawn):
    picture = (drawn / "delta_vs_sigma.svg").read_text()
    for d in (1, 10, 30, 100):
        assert f"paper d={d} (not an upper bound)" in picture
        assert f"points, d={d}, not an upper bound" in picture
        assert f"realised d={d} (lower bound)" in picture
    page = (drawn / "README.md").read_text()
    assert "![delta_vs_sigma](delta_vs_sigma.png)" in page
    assert "shifts the sampled sum away before averaging over it" in page
    assert "σ = 2 on are the WCS value" in page


def test_the_table_of_noise_has_both_scenarios_and_the_papers_figures(drawn):
    rows = rows_of(drawn / "sigma_table.csv")
    sigma = {(row["scenario"], row["scheme"]): float(row["sigma"]) for row in rows}
    assert sigma["many-small", "certified"] == pytest.approx(2.3733, abs=0.002)
    assert sigma["many-small", "realised"] == pytest.approx(2.37, rel=0.003)
    assert sigma["few-large", "certified"] == pytest.approx(0.8087, abs=0.001)
    assert sigma["few-large", "realised"] == pytest.approx(0.741, rel=0.003)
    for row in rows:
        if row["sigma_in_paper"]:
            assert float(row["sigma"]) == pytest.approx(float(row["sigma_in_paper"]), rel=0.005)
    holds = {row["scheme"] for row in rows if row["upper_bound"] == "True"}
    assert holds == {"certified", "wcs", "ols", "cs"}


def test_json_lists_what_was_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(paper_drawing, "draw_all", lambda *_: iter([(1, "one"), (None, "two")]))
    done = CliRunner().invoke(app, ["paper", "--out", str(tmp_path), "--json"])
    assert json.loads(done.stdout) == {"out": str(tmp_path), "figures": ["one", "two"]}


def test_an_unwritable_folder_is_told_in_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    done = subprocess.run(
        [PROGRAM, "paper", "--out", tmp_path / "file" / "x"],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert (done.returncode, done.stdout) == (2, "")
    (sentence,) = done.stderr.splitlines()
    assert str(tmp_path / "file") in sentence


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "is not JSON"),
        ("[]", "lacks the figure fig:eps_vs_sigma"),
        ('{"fig:eps_vs_sigma": {"delta": 1e-6}}', "with delta, curves"),
    ],
)
def test_points_that_are_not_the_papers_are_refused(tmp_path, content, reason):
    (tmp_path / "points.json").write_text(content)
    with pytest.raises(ValueError, match=reason):
        paper_figures.load_points(tmp_path / "points.json")


def test_check_ins_trade_epsilon_against_delta_above_what_sampling_alone_gives():
    curve = check_in_curve(p=0.1, q=0.1, noise_multiplier=3.0)
    assert curve == sorted(curve)
    deltas = [delta for _, delta in curve]
    assert deltas == sorted(deltas, reverse=True)
    local = OnlyLocalSampling(Round(p=0.1, q=0.1, d=0, noise_multiplier=3.0))
    assert all(delta > local.delta(epsilon) for epsilon, delta in curve)


def test_one_figure_is_drawn_by_its_number_in_the_paper(tmp_path):
    command = [PROGRAM, "paper", "--figure", "4", "--out", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    name = tmp_path / "out" / "comparison_with_literature"
    assert done.stdout == f"Figure 4: {name}.png, .svg, .csv\n"
    drawn = {path.name for path in name.parent.iterdir()}
    assert drawn == {"README.md", *(f"{name.name}.{kind}" for kind in ("png", "svg", "csv"))}
    assert "## Figure 4: " in (name.parent / "README.md").read_text()


@pytest.mark.parametrize(
    ("number", "sentence"),
    [("6", "paper experiments"), ("8", "paper-cnn"), ("0", "is not in the paper")],
)
def test_a_figure_that_cannot_be_drawn_says_what_it_shows(tmp_path, number, sentence):
    command = [PROGRAM, "paper", "--figure", number, "--out", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert not (tmp_path / "out").exists()
