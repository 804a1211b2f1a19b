"""What a person can get wrong with `coinflower run` and `client`: one sentence, exit code 2."""

import socket

import pytest

from tests.support.builders import policy_text


@pytest.fixture
def command(program, monkeypatch, tmp_path):
    """The program, in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    return program


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--mode", "hidden"], "choose one of trusted, covered, untrusted, masked, quiet"),
        (["--mode", "none"], "--no-privacy"),
        (["--mode", "local-only", "-p", "0.5"], "must be 1 in mode local-only"),
        (["--data", "no/such/folder"], "'no/such/folder' does not exist"),
        (["--data", "digit"], "did you mean digits?"),
        (["--model", "paper_cnn"], "is unknown"),
        (["--model", "paper-cnn"], "cannot take the 8 x 8 images of digits"),
        (["--partition", "writer"], "has none"),
        (["--rounds", "3", "--rounds-per-invite", "4"], "more than the 3 rounds planned"),
        (["--clients", "2000"], "in 1 to 1437"),
        (["-p", "0"], "p = 0.0 is not a probability"),
        (["-q", "1.5"], "q = 1.5 is not a probability"),
        (["--sigma", "-1"], "noise_multiplier = -1.0 must be"),
        (["--clip-norm", "inf", "--sigma", "1"], "clip_norm = inf must be"),
        (["--cap", "0.5"], "cap = 0.5 must be at least 1 clip norm"),
        (["--cap", "nan"], "cap = nan must be at least 1 clip norm"),
        (["--cap", "-2"], "cap = -2.0 must be at least 1 clip norm"),
        (["--cap", "two"], "'two' is not a valid float"),
        (["--cap", "1", "--sigma", "nan"], "noise_multiplier = nan must be"),
        (["--cap", "0", "--sigma", "1"], "cap = 0.0 must be at least 1"),
        (["--cap", "1e13", "--sigma", "1"], "cap = 10000000000000.0 must lie in 1 to 1e+12"),
        (
            ["--mode", "none", "--no-privacy", "--clip-norm", "inf", "--cap", "2"],
            "cap = 2 counts clip norms, so the clip norm must be finite",
        ),
        (["--mode", "masked", "--clients", "1"], "clients = 1 must be at least 2: a masked sum"),
        (["--mode", "masked", "--threshold", "11"], "threshold = 11 is more than the 10 clients"),
        (
            ["--mode", "masked", "--threshold", "1"],
            "threshold = 1 must be an integer of at least 2",
        ),
        (
            ["--mode", "masked", "--colluders", "0"],
            "colluders = 0 must be an integer of at least 1",
        ),
        (["--mode", "masked", "--colluders", "8"], "threshold = 8 must be above colluders = 8"),
        (["--threshold", "4"], "threshold goes with mode masked, not with mode trusted"),
        (["--colluders", "2", "--mode", "quiet"], "colluders goes with mode masked"),
        (["--mode", "masked", "--nodes", "ray"], "mode masked needs a notary"),
        (["--epsilon", "0"], "budget of nothing"),
        (["--processes", "--stock-nodes"], "Choose one"),
        (["--processes", "--ray"], "Choose one kind of --nodes, not processes and ray"),
        (["--nodes", "stock", "--ray"], "Choose one kind of --nodes, not stock and ray"),
        (["--resume", "nowhere"], "holds no run"),
    ],
)
def test_a_mistake_is_named_in_one_sentence(command, tmp_path, arguments, sentence):
    code, out, err = command("run", *arguments)
    assert code == 2
    assert sentence in err.replace("\n", " ")
    assert "Traceback" not in err
    assert out == ""
    assert not list(tmp_path.iterdir()), "something was written all the same"


def test_without_ray_its_extra_is_named(command, monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    code, _, err = command("run", "--ray")
    assert code == 2
    assert "coinflower[simulation]" in err.replace("\n", " ")
    assert not list(tmp_path.iterdir())


def test_a_port_in_use_is_named(command):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = command("run", "--clients", "2", "--rounds", "1", "--port", port)
    assert code == 2
    assert f"Port {port} on 127.0.0.1 is in use" in err


def test_a_folder_in_use_is_left_alone(command, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("mine")
    code, _, err = command("run", "--out", "precious")
    assert code == 2
    assert "is not empty" in err
    assert [path.name for path in (tmp_path / "precious").iterdir()] == ["thesis.txt"]


POLICY = policy_text(modes=["trusted"])


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (("least_noise_multiplier", "least_noise_multiplyer"), "did you mean 'least_noise_mult"),
        (("epsilon = 3.0", "epsilom = 3.0"), "did you mean 'epsilon'?"),
        (("largest_p = 0.5", ""), "lacks 'largest_p'"),
        (('"trusted"', '"trustful"'), "modes.0 = 'trustful' must be 'trusted'"),
        (("declared_size = 1437", "declared_size = 1000"), "has 1437 records, more than the decl"),
        (('"digits"', '"/no/data"'), "does not exist"),
        (("= 0.2", "= = 0.2"), "is not TOML"),
        (("", ""), "There is no ledger at"),
    ],
)
def test_a_policy_that_cannot_be_used_is_explained_before_joining(
    command, tmp_path, edit, sentence
):
    (tmp_path / "policy.toml").write_text(POLICY.replace(*edit) if edit[0] else POLICY)
    code, _, err = command("client", "policy.toml", "--superlink", "127.0.0.1:9", "--insecure")
    assert code == 2
    assert sentence in err.replace("\n", " ")
    assert "Traceback" not in err
