"""Whatever a person states is kept, or the command is refused and nothing is written."""

import itertools
import math
import sys

import pytest

from coinflower.accounting.composition.compose import epsilon_after
from coinflower.cli import main as cli
from coinflower.protocol.policy import load_policy
from coinflower.server.settings import load_settings

LIMITS = ("--sigma", "--epsilon", "--delta", "--rounds", "-p", "-q", "--clip-norm", "--cap")
SIGMAS = (None, "0.1", "1", "6")
EPSILONS = (None, "0.05", "1", "40")
OTHERS = (
    {},
    {"--delta": "1e-6", "--rounds": "2"},
    {"--mode": "local-only", "-q": "0.05"},
    {"--mode": "quiet", "-p": "0.3", "--clip-norm": "0.25"},
    {"-p": "0.2", "--cap": "1.5"},
    {"--mode": "untrusted", "--rounds": "12", "--rounds-per-invite": "3"},
)


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Return a function that runs the program, which prepares federations and plays none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("coinflower.deploy.local.local_run.run_cluster", lambda *_, **__: [])
    monkeypatch.setattr("coinflower.report.run.report_local_run", lambda _: None)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["coinflower", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code or 0, capsys.readouterr().err.replace("\n", " ")

    return run


def check_kept(folder, stated):
    """Check that terms and every policy in a folder are at least as strict as what was stated."""
    terms = load_settings(folder / "settings.toml").terms
    limits = {option: float(stated.get(option) or math.inf) for option in LIMITS}
    least_sigma = float(stated.get("--sigma") or 0.0)
    policies = [load_policy(path) for path in sorted(folder.glob("clients/client-*.toml"))]
    assert policies
    for policy in policies:
        assert policy.budget.epsilon <= limits["--epsilon"]
        assert policy.budget.delta <= limits["--delta"]
        assert policy.largest_p <= limits["-p"]
        assert policy.largest_q <= limits["-q"]
        assert policy.largest_clip_norm <= limits["--clip-norm"]
        assert policy.largest_cap <= limits["--cap"]
        assert policy.least_noise_multiplier >= least_sigma
        assert policy.modes == {terms.mode}
        policy.require(terms)
        rounds = [(terms.round_cost(policy.declared_size), terms.rounds)]
        assert epsilon_after(rounds, policy.budget.delta) <= policy.budget.epsilon
    assert terms.cap <= limits["--cap"]
    assert terms.noise_multiplier >= least_sigma
    assert terms.rounds <= limits["--rounds"]
    assert str(terms.mode) == stated.get("--mode", "trusted")


@pytest.mark.parametrize("others", OTHERS, ids=lambda others: " ".join(others.values()))
def test_a_run_keeps_every_stated_limit_or_is_refused(command, tmp_path, others):
    outcomes = set()
    for number, (sigma, epsilon) in enumerate(itertools.product(SIGMAS, EPSILONS)):
        wishes = {"--rounds": "5", "--sigma": sigma, "--epsilon": epsilon, **others}
        stated = {option: value for option, value in wishes.items() if value is not None}
        order = list(stated.items())[:: -1 if number % 2 else 1]
        words = itertools.chain(*order)
        code, err = command("run", "--clients", "2", "--out", f"run-{number}", *words)
        outcomes.add(code)
        if code == 0:
            check_kept(tmp_path / f"run-{number}", stated)
        else:
            assert code == 2
            assert not (tmp_path / f"run-{number}").exists()
            assert f"sigma = {sigma} costs epsilon = " in err
            assert f"more than the stated epsilon = {epsilon};" in err
    assert outcomes == {0, 2}, "the table must have values that conflict and values that do not"


def test_a_stated_noise_alone_gives_every_client_what_it_costs(command, tmp_path):
    assert command("run", "--clients", 2, "--rounds", 3, "--sigma", 0.1, "--out", "run")[0] == 0
    check_kept(tmp_path / "run", {"--sigma": "0.1", "--rounds": "3"})


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--epsilon 1 --epsilon 100", "--epsilon is given 2 times"),
        ("--sigma 5 --epsilon 1 --sigma 0.1", "--sigma is given 2 times"),
        ("--mode untrusted --mode trusted", "--mode is given 2 times"),
        ("--mode none --no-privacy --epsilon 1", "cannot honour --epsilon 1;"),
        ("--mode none --no-privacy --sigma 2 --delta 1e-5", "honour --sigma 2, --delta 1e-05;"),
        ("--rounds-per-invite 0", "rounds_per_invitation = 0 must be"),
        ("--epsilon nan", "epsilon = nan"),
        ("--epsilon nan --sigma 1", "epsilon = nan"),
        ("--delta nan", "delta = nan"),
        ("--delta 0 --sigma 1", "delta = 0"),
        ("--delta 0.5 --epsilon -1 --sigma 100", "epsilon = -1"),
    ],
)
def test_options_that_cannot_both_hold_are_refused(command, tmp_path, words, sentence):
    code, err = command("run", "--clients", 2, *words.split())
    assert (code, sentence in err) == (2, True), err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        "--epsilon 0.1",
        "--sigma 9",
        "--delta 1e-9",
        "--mode untrusted",
        "-p 0.1",
        "-q 0.01",
        "--clip-norm 0.1",
        "--rounds 1",
        "--clients 3",
        "--seed 1",
        "--out elsewhere",
    ],
)
def test_a_resumed_run_takes_no_other_limits(command, tmp_path, words):
    command("run", "--clients", 2, "--rounds", 3, "--out", "run")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.toml")}
    for order in (["--resume", "run", *words.split()], [*words.split(), "--resume", "run"]):
        code, err = command("run", *order)
        assert code == 2
        assert f"leave out {words.split()[0]}." in err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.toml")} == before
    assert command("run", "--resume", "run", "--json")[0] == 0


def test_a_run_without_privacy_goes_on_as_it_began(command, tmp_path):
    options = ("--mode", "none", "--no-privacy", "--clients", 2, "--rounds", 1, "--out", "run")
    assert command("run", *options)[0] == 0
    assert command("run", "--resume", "run", "--no-privacy")[0] == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--listen 127.0.0.1:9", "Without --keys"),
        ("--gateway", "Without --keys"),
        ("--no-gateway --keys keys --listen 127.0.0.1:9", "--no-gateway has none"),
        ("--port 1 --port 2", "--port is given 2 times"),
        ("--gateway --no-gateway", "--gateway/--no-gateway is given 2 times"),
    ],
)
def test_a_server_is_not_told_of_a_gateway_that_it_has_not(command, words, sentence):
    code, err = command("server", "run", "settings.toml", *words.split())
    assert (code, sentence in err) == (2, True), err


def test_a_client_does_not_forget_the_authority_it_was_given(command):
    words = "policy.toml --superlink 127.0.0.1:9 --insecure --root-certificates ca.pem"
    code, err = command("client", *words.split())
    assert code == 2
    assert "--root-certificates ca.pem would have no effect; leave out one of them" in err


@pytest.mark.parametrize("largest_p", ["0.2", "1"])
@pytest.mark.parametrize("mode", ["trusted", "untrusted", "quiet"])
def test_a_plan_proposes_no_more_than_was_wished(command, tmp_path, mode, largest_p):
    wishes = {"--epsilon": "0.7", "--delta": "1e-6", "--rounds": "30"}
    words = list(itertools.chain(*wishes.items()))
    words += ["--clients", "10", "-d", "200", "--batch", "50", "--largest-p", largest_p]
    assert command("plan", *words, "--mode", mode, "--out", "run")[0] == 0
    folder = tmp_path / "run"
    (folder / "clients").mkdir()
    (folder / "policy.toml").rename(folder / "clients" / "client-0.toml")
    check_kept(folder, {**wishes, "-p": largest_p, "--mode": mode})
