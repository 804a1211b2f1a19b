"""The simulator draws what the deployment draws, and steps as the server steps."""

import errno
import math

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from scipy import stats

from coinflower.experiments.simulator.scenarios import synthetic_data
from coinflower.experiments.simulator.simulation import Curve, read_state, simulate, sources_of
from coinflower.experiments.simulator.simulator import CENTRAL, Scenario, Simulator
from coinflower.learning import (
    SeededRandom,
    Update,
    build_model,
    capped_sum,
    clipped_gradient_sum,
    flatten_parameters,
    load_data,
    load_parameters,
)
from coinflower.protocol.modes import Mode


@pytest.fixture(scope="module")
def digits():
    return load_data("digits")


def simulator(digits, *, sizes=None, seed=0, threads=1, **changes):
    sizes = np.array([10] * 100) if sizes is None else np.asarray(sizes)
    fields = {
        "p": 0.3,
        "q": 0.2,
        "clip_norm": 1.0,
        "noise_multiplier": 1.0,
        "noise": Mode.TRUSTED,
        "update": Update(learning_rate=0.5),
    }
    rows = np.arange(int(sizes.sum()))
    return Simulator(
        Scenario(sizes=sizes, **{**fields, **changes}),
        digits.train,
        build_model("digits", classes=10),
        np.random.default_rng(seed),
        SeededRandom(seed),
        rows=rows,
        threads=threads,
    )


def test_without_sampling_and_noise_it_is_gradient_descent(digits):
    run = simulator(
        digits,
        sizes=[len(digits.train.targets)],
        p=1.0,
        q=1.0,
        clip_norm=math.inf,
        noise_multiplier=0.0,
        noise=Mode.NONE,
        update=Update(learning_rate=0.5, momentum=0.9),
    )
    model = build_model("digits", classes=10)
    weights, velocity = flatten_parameters(model).numpy(), 0.0
    inputs = torch.from_numpy(digits.train.inputs)
    targets = torch.from_numpy(digits.train.targets)
    for _ in range(4):
        run.step()
        load_parameters(model, weights)
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        gradient = np.concatenate([w.grad.numpy().ravel() for w in model.parameters()])
        velocity = 0.9 * velocity + gradient
        weights = (weights - 0.5 * velocity).astype(np.float32)
    np.testing.assert_allclose(run.optimizer.weights, weights, atol=1e-5)


def step_of_real_clients(run, draw, model, cap_norm):
    """Return the sum behind a step: every client clips its own rows and caps its own sum."""
    rows = torch.from_numpy(run._sums._records.inputs[draw.sampled]).unsqueeze(1)
    targets = torch.from_numpy(run._sums._records.targets[draw.sampled])
    total = np.zeros_like(run.optimizer.weights)
    for owner in set(draw.owners.tolist()):
        mine = torch.from_numpy(draw.owners == owner)
        total += capped_sum(
            clipped_gradient_sum(model, rows[mine], targets[mine], 0.5).numpy(), cap_norm
        )
    return total


@pytest.mark.parametrize("cap", [1.0, 1.5, 3.0, math.inf])
@pytest.mark.parametrize("shape", [{"q": 0.2}, {"p": 1.0, "q": 1.0}, {"q": 1e-9}])
def test_every_clients_sum_is_capped(digits, cap, shape):
    sizes = [10] * 80 + [1] * 10 + [150]
    run = simulator(
        digits,
        sizes=sizes,
        clip_norm=0.5,
        cap=cap,
        noise_multiplier=0.0,
        noise=Mode.NONE,
        update=Update(learning_rate=1.0),
        **shape,
    )
    model = build_model("digits", classes=10)
    for _ in range(3):
        before = run.optimizer.weights
        load_parameters(model, before)
        draw = run.step()
        scale = run._scenario.p * run._scenario.q * sum(sizes)
        expected = step_of_real_clients(run, draw, model, 0.5 * cap)
        np.testing.assert_allclose(
            (before - run.optimizer.weights) * scale, expected, rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("cap", [1.5, math.inf])
@pytest.mark.parametrize("shape", [{"p": 1.0, "q": 0.9}, {"q": 0.1}, {"q": 1e-9}])
def test_a_seeded_run_is_the_same_on_any_number_of_threads(digits, cap, shape):
    weights = []
    for threads in (1, 2, 3):
        run = simulator(digits, cap=cap, clip_norm=0.5, threads=threads, **shape)
        for _ in range(4):
            run.step()
        weights.append(run.optimizer.weights)
    assert (weights[0] == weights[1]).all()
    assert (weights[0] == weights[2]).all()


def test_an_error_in_a_thread_is_that_of_the_step(digits):
    run = simulator(digits, p=1.0, q=1.0, threads=2)
    run._sums._records = None
    with pytest.raises(AttributeError):
        run.step()


def test_a_cap_that_bites_shortens_the_step(digits):
    steps = []
    for cap in (1.0, math.inf):
        run = simulator(digits, p=1.0, q=1.0, clip_norm=0.1, cap=cap, noise_multiplier=0.0)
        before = run.optimizer.weights
        run.step()
        steps.append(np.linalg.norm(before - run.optimizer.weights))
    assert steps[0] < 0.5 * steps[1]


def test_rows_are_said_to_belong_to_those_who_hold_them(digits):
    sizes = [3, 50, 7, 20, 20]
    run = simulator(digits, sizes=sizes, p=0.5)
    holder = np.repeat(np.arange(5), sizes)
    for _ in range(200):
        draw = run.draw()
        assert (holder[draw.sampled] == draw.owners).all()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"cap": 0.5}, r"cap = 0\.5 must be at least 1 clip norm"),
        ({"cap": 2.0, "clip_norm": math.inf}, "so the clip norm must be finite"),
    ],
)
def test_a_cap_that_bounds_nothing_is_refused(digits, changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        simulator(digits, **changes)


# Each of these passes the right parameter with a false alarm of 1e-6 and rejects one 10 % off.
def test_participants_and_batches_have_the_right_rates(digits):
    run = simulator(digits)
    draws = [run.draw() for _ in range(3000)]
    joined = sum(draw.participants for draw in draws)
    sampled = sum(len(draw.sampled) for draw in draws)
    flips = 3000 * 100
    assert stats.binomtest(joined, flips, 0.3).pvalue > 1e-6
    assert stats.binomtest(joined, flips, 0.33).pvalue < 1e-6
    assert stats.binomtest(joined, flips, 0.27).pvalue < 1e-6
    assert stats.binomtest(sampled, joined * 10, 0.2).pvalue > 1e-6
    assert stats.binomtest(sampled, joined * 10, 0.22).pvalue < 1e-6
    assert stats.binomtest(sampled, joined * 10, 0.18).pvalue < 1e-6


def test_rows_belong_to_participants_and_every_row_is_as_likely(digits):
    sizes = [3, 50, 7, 20, 20]
    run = simulator(digits, sizes=sizes, p=0.5)
    counts = np.zeros(100)
    for _ in range(20_000):
        rows = run.draw().sampled
        assert len(set(rows.tolist())) == len(rows)
        counts[rows] += 1
    # Rows of one client share its coin, so compare means over many iterations: 6 sigma.
    expected = 20_000 * 0.5 * 0.2
    assert np.abs(counts - expected).max() < 6 * math.sqrt(expected)


def test_clients_that_are_away_change_scale_and_participation(digits):
    run = simulator(digits, sizes=[5] * 50 + [15] * 50, availability=0.6)
    draws = [run.draw() for _ in range(4000)]
    available = np.mean([draw.available for draw in draws])
    sizes = np.mean([draw.available_size for draw in draws])
    joined = np.mean([draw.participants for draw in draws])
    assert available == pytest.approx(60, rel=0.01)
    assert sizes == pytest.approx(600, rel=0.01)
    assert joined == pytest.approx(18, rel=0.02)
    assert all(draw.participants <= draw.available for draw in draws)


def test_of_equal_clients_that_are_away_only_the_number_is_drawn(digits, monkeypatch):
    run = simulator(digits, availability=0.6)
    monkeypatch.setattr(np, "setdiff1d", None)
    draws = [run.draw() for _ in range(4000)]
    # Binomial(100, 0.6): its mean over 4000 draws is within 6 of its standard deviations.
    assert np.mean([draw.available for draw in draws]) == pytest.approx(60, abs=0.47)
    # Its variance is 24, with a relative spread of sqrt(2/4000); 6 of them.
    assert np.var([draw.available for draw in draws]) == pytest.approx(24, rel=0.14)
    assert all(draw.available_size == 10 * draw.available for draw in draws)
    assert all(draw.participants <= draw.available <= 100 for draw in draws)


@pytest.mark.parametrize(
    ("noise", "variance"),
    [
        (Mode.TRUSTED, 4.0),
        (Mode.COVERED, 4.0),
        (Mode.UNTRUSTED, 4.0 * 100),
        (Mode.QUIET, 4.0 * 100),
        (CENTRAL, 4.0),
        (Mode.LOCAL_ONLY, 4.0),
        (Mode.NONE, 0.0),
    ],
)
def test_the_sum_carries_as_much_noise_as_its_model_says(digits, noise, variance):
    run = simulator(
        digits, p=1.0, q=1e-9, noise_multiplier=2.0, noise=noise, update=Update(learning_rate=1.0)
    )
    before = run.optimizer.weights
    run.step()
    scale = 1.0 * 1e-9 * 1000
    added = (before - run.optimizer.weights) * scale
    # χ² with n degrees: relative spread sqrt(2/n); 6 of them on either side.
    spread = 6 * math.sqrt(2 / added.size)
    assert np.mean(added**2) == pytest.approx(variance, rel=spread, abs=1e-12)


@pytest.mark.parametrize(("threshold", "colluders"), [(80, 10), (100, 1)])
def test_masked_noise_is_that_of_all_shares_over_the_honest_ones(digits, threshold, colluders):
    run = simulator(
        digits,
        p=1.0,
        q=1e-9,
        noise_multiplier=2.0,
        noise=Mode.MASKED,
        update=Update(learning_rate=1.0),
        threshold=threshold,
        colluders=colluders,
    )
    before = run.optimizer.weights
    run.step()
    added = (before - run.optimizer.weights) * 1e-9 * 1000
    spread = 6 * math.sqrt(2 / added.size)
    variance = 4.0 * 100 / (threshold - colluders)
    assert np.mean(added**2) == pytest.approx(variance, rel=spread)


def test_a_masked_round_with_too_few_clients_is_void(digits):
    run = simulator(
        digits, noise=Mode.MASKED, availability=0.3, threshold=90, colluders=1, p=1.0, q=1.0
    )
    before = run.optimizer.weights
    assert run.step().available < 90
    assert np.array_equal(run.optimizer.weights, before)


def test_a_stopped_simulation_goes_on_where_it_was(digits, tmp_path):
    first = simulator(digits, noise_multiplier=0.0)
    model = build_model("digits", classes=10)
    left = iter(range(6))
    partial = simulate(
        first,
        model,
        digits,
        iterations=10,
        evaluate_every=3,
        folder=tmp_path,
        stopped=lambda: next(left, None) is None,
    )
    assert partial.iterations == 6
    second = simulator(digits, noise_multiplier=0.0, seed=1)
    begun = read_state(tmp_path)
    curve = simulate(second, model, digits, iterations=10, evaluate_every=3, begun=begun)
    assert curve.iterations == 10
    assert set(curve.accuracy) == {3, 6, 9, 10}
    assert curve.accuracy[3] == partial.accuracy[3]


def test_a_damaged_state_is_not_gone_on_with(tmp_path):
    (tmp_path / "simulation.safetensors").write_bytes(b"rubbish")
    with pytest.raises(ValueError, match="is damaged"):
        read_state(tmp_path)


def test_a_state_that_does_not_say_how_it_began_is_not_gone_on_with(digits, tmp_path):
    model = build_model("digits", classes=10)
    simulate(simulator(digits), model, digits, iterations=1, evaluate_every=1, folder=tmp_path)
    path = tmp_path / "simulation.safetensors"
    with safe_open(path, "numpy") as file:
        tensors = {name: file.get_tensor(name) for name in ("weights", "steps", "round")}
        curve = file.metadata()["curve"]
    save_file(tensors, path, metadata={"curve": curve})
    with pytest.raises(ValueError, match="does not say how its simulation began"):
        read_state(tmp_path)


def test_seeded_coins_that_were_played_do_not_come_again():
    first, again, later = (sources_of(3, start)[0].bytes(64) for start in (0, 0, 10))
    assert first == again
    assert first != later


def test_seeded_noise_that_was_added_does_not_come_again():
    first, again, later = (sources_of(3, start)[1].normal(8, 1.0) for start in (0, 0, 10))
    assert (first == again).all()
    assert (first != later).all()


def test_seeded_coins_and_noise_come_from_streams_of_their_own():
    coins, noise = sources_of(3, 0)
    assert coins.bytes(64) != noise._generator.bytes(64)


def test_synthetic_data_can_be_learned():
    data = synthetic_data(3000, classes=10, test=200)
    model = build_model("paper-cnn", classes=10)
    run = Simulator(
        Scenario(
            sizes=np.full(100, 30),
            p=0.5,
            q=0.2,
            clip_norm=1.0,
            noise_multiplier=0.0,
            noise=Mode.NONE,
            update=Update(learning_rate=0.3, momentum=0.9),
        ),
        data.train,
        model,
        np.random.default_rng(0),
        SeededRandom(0),
    )
    curve = simulate(run, model, data, iterations=40, evaluate_every=40)
    assert isinstance(curve, Curve)
    assert curve.accuracy[40] > 0.5


def test_a_full_disk_stops_nothing_and_spoils_nothing(digits, tmp_path, monkeypatch):
    model = build_model("digits", classes=10)
    simulate(simulator(digits), model, digits, iterations=2, evaluate_every=2, folder=tmp_path)
    kept = (tmp_path / "simulation.safetensors").read_bytes()

    def no_room(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("coinflower.server.checkpoint.write_atomically", no_room)
    told = []
    curve = simulate(
        simulator(digits),
        model,
        digits,
        iterations=5,
        evaluate_every=5,
        folder=tmp_path,
        begun=read_state(tmp_path),
        note=told.append,
    )
    assert curve.iterations == 5
    assert "No space left on device" in told[0]
    assert (tmp_path / "simulation.safetensors").read_bytes() == kept
