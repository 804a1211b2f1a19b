"""Sums: once a round, exact or noisy, and alike whatever the coin."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from coinflower.client import gradient_sums
from coinflower.client.data import load_local_data
from coinflower.client.participant import UnansweredError
from coinflower.learning import Records, SecureRandom, build_model, clipped_gradient_sum, to_tensor
from coinflower.learning.noise import lattice_cell
from coinflower.protocol.messages import vector_to_bytes
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import load_policy
from tests.support.participants import (
    LENGTH,
    SPEAKING,
    Make,
    Recorder,
    answer,
    enrolled,
    exact_sum,
    fail_on,
    variance_p_value,
)

# Answers


@pytest.mark.parametrize("mode", Mode)
def test_a_round_is_answered_once(owner: Any, make_terms: Make, weights: bytes, mode: Mode) -> None:
    terms = make_terms(mode)
    participant = enrolled(owner.open_with(True, randomness=Heads()), terms)
    answer(participant, terms, 3, weights)
    with pytest.raises(UnansweredError, match="round 3 was answered before"):
        answer(participant, terms, 3, weights)


class Heads(Recorder):
    """Public coins of mode none that say yes."""

    def coin(self, p: float) -> bool:
        return p > 0


@pytest.mark.parametrize("falls", [True, False])
def test_a_round_is_answered_once_also_after_a_restart(
    owner: Any, make_terms: Make, weights: bytes, falls: bool
) -> None:
    participant = enrolled(owner.open_with(falls), make_terms())
    participant.gradient_sum(make_terms(), 3, weights)
    participant.ledger.close()
    with pytest.raises(UnansweredError, match="round 3 was answered before"):
        owner.open().gradient_sum(make_terms(), 3, weights)
    assert len(owner.entries("charge")) == len(owner.entries("answer")) == 1


@pytest.mark.parametrize("mode", SPEAKING)
def test_who_sits_out_says_nothing_but_is_charged(
    owner: Any, make_terms: Make, weights: bytes, mode: Mode
) -> None:
    terms, recorder = make_terms(mode), Recorder()
    participant = enrolled(owner.open_with(False, randomness=recorder), terms)
    for _ in range(2):
        with pytest.raises(UnansweredError, match="its coin said no"):
            participant.gradient_sum(terms, 1, weights)
    assert recorder.calls == []
    assert len(owner.entries("charge")) == 1


@pytest.mark.parametrize("mode", [Mode.TRUSTED, Mode.LOCAL_ONLY, Mode.NONE])
def test_where_the_server_adds_the_noise_the_sum_is_exact(
    owner: Any, make_terms: Make, weights: bytes, mode: Mode
) -> None:
    terms = make_terms(mode, q=1.0)
    participant = enrolled(owner.open_with(True, randomness=Heads()), terms)
    total = participant.gradient_sum(terms, 1, weights)
    assert total.dtype == np.float32
    np.testing.assert_allclose(total, exact_sum(owner, weights), atol=1e-6)


@pytest.mark.parametrize("mode", [Mode.TRUSTED, Mode.NONE])
def test_an_empty_sample_gives_zeros(
    owner: Any, make_terms: Make, weights: bytes, mode: Mode
) -> None:
    terms = make_terms(mode, q=1e-9)
    participant = enrolled(owner.open_with(True, randomness=Heads()), terms)
    assert not participant.gradient_sum(terms, 1, weights).any()


@pytest.mark.parametrize("mode", [Mode.UNTRUSTED, Mode.QUIET])
def test_an_empty_sample_still_gives_noise(
    owner: Any, make_terms: Make, weights: bytes, mode: Mode
) -> None:
    terms = make_terms(mode, q=1e-9)
    participant = enrolled(owner.open_with(True), terms)
    assert 1.3 < participant.gradient_sum(terms, 1, weights).std() < 1.7


def test_untrusted_answers_look_alike_whatever_the_coin(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    terms = make_terms()
    participant = enrolled(owner.open_with(True, False), terms)
    joined, sat_out, *others = [
        participant.gradient_sum(terms, round_, weights) for round_ in range(1, 5)
    ]
    assert joined.dtype == sat_out.dtype == np.float32
    assert joined.shape == sat_out.shape == (LENGTH,)
    assert len({vector_to_bytes(sent) for sent in (joined, sat_out, *others)}) == 4
    cell = lattice_cell(terms.noise_std)
    for sent in (joined, sat_out):
        counts = sent.astype(np.float64) / cell
        assert (counts == np.floor(counts)).all()


def test_an_untrusted_client_does_the_same_work_for_either_coin(
    owner: Any, make_terms: Make, weights: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms, recorder = make_terms(), Recorder()
    participant = enrolled(owner.open_with(True, False, randomness=recorder), terms)

    def counted(
        model: Any, inputs: Any, targets: Any, clip_norm: float, **more: Any
    ) -> torch.Tensor:
        recorder.calls.append(("gradient", len(targets) - recorder.batches[-1], clip_norm))
        return clipped_gradient_sum(model, inputs, targets, clip_norm, **more)

    monkeypatch.setattr(gradient_sums, "clipped_gradient_sum", counted)
    work = []
    for round_ in (1, 2):
        recorder.calls.clear()
        participant.gradient_sum(terms, round_, weights)
        work.append(list(recorder.calls))
    assert work[0] == [("sample", 30, 0.5), ("gradient", 0, 1.0), ("noise", LENGTH, 1.5)]
    assert work[1] == work[0]
    writes = [(entry.kind, entry.round) for entry in owner.entries()[1:]]
    assert writes == [("charge", 1), ("answer", 1), ("charge", 2), ("answer", 2)]


@pytest.mark.parametrize("mode", [Mode.TRUSTED, Mode.COVERED, Mode.LOCAL_ONLY])
def test_a_sample_whose_gradient_fails_counts_as_zero_and_takes_no_other_with_it(
    owner: Any, make_terms: Make, weights: bytes, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = make_terms(mode, q=1.0)
    participant = enrolled(owner.open_with(True), terms)
    peculiar = load_local_data(load_policy(owner.policy)).inputs[[4, 17]]
    monkeypatch.setattr(gradient_sums, "clipped_gradient_sum", fail_on(peculiar))
    total = participant.gradient_sum(terms, 1, weights)
    np.testing.assert_allclose(total, exact_sum(owner, weights, without=[4, 17]), atol=1e-5)


def test_gradients_are_clipped_as_the_terms_say(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    terms = make_terms(Mode.TRUSTED, q=1.0, clip_norm=0.5, clipping="automatic")
    participant = enrolled(owner.open_with(True), terms)
    total = participant.gradient_sum(terms, 1, weights)
    wanted = exact_sum(owner, weights, 0.5, clipping="automatic")
    np.testing.assert_allclose(total, wanted, atol=1e-6)
    assert np.abs(total - exact_sum(owner, weights, 0.5)).max() > 1e-4


@pytest.mark.parametrize("mode", [Mode.UNTRUSTED, Mode.QUIET])
def test_a_sample_whose_gradient_fails_moves_a_noisy_sum_by_the_clip_norm_at_most(
    owner: Any, make_terms: Make, weights: bytes, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = make_terms(mode, q=1.0)
    participant = enrolled(owner.open_with(True, randomness=Noiseless()), terms)
    peculiar = load_local_data(load_policy(owner.policy)).inputs[[17]]
    monkeypatch.setattr(gradient_sums, "clipped_gradient_sum", fail_on(peculiar))
    total = participant.gradient_sum(terms, 1, weights)
    moved = np.linalg.norm(total - exact_sum(owner, weights))
    assert moved <= terms.clip_norm * (1 + 1e-3)


class Noiseless(Recorder):
    """Noise that is all zeros, so that the sum shows."""

    def normal(self, size: int, std: float) -> npt.NDArray[np.float64]:
        return 0 * super().normal(size, std)


def test_a_gradient_that_always_fails_does_not_show_where_the_client_adds_noise(
    owner: Any, make_terms: Make, weights: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = make_terms()
    participant = enrolled(owner.open_with(True, False), terms)
    monkeypatch.setattr(gradient_sums, "clipped_gradient_sum", lambda *_, **__: 1 / 0)
    for round_ in (1, 2):
        sent = participant.gradient_sum(terms, round_, weights)
        assert variance_p_value(sent, terms.noise_std) > 1e-6


@pytest.mark.parametrize("mode", [Mode.TRUSTED, Mode.LOCAL_ONLY, Mode.NONE])
def test_a_gradient_that_fails_without_any_sample_sends_nothing_where_the_server_adds_the_noise(
    owner: Any, make_terms: Make, weights: bytes, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = make_terms(mode)
    participant = enrolled(owner.open_with(True, randomness=Heads()), terms)
    monkeypatch.setattr(gradient_sums, "clipped_gradient_sum", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        participant.gradient_sum(terms, 1, weights)


def test_a_sample_that_cannot_be_read_does_not_show(
    owner: Any, make_terms: Make, weights: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = make_terms()
    participant = enrolled(owner.open_with(True), terms)
    monkeypatch.setattr(Records, "batch", lambda *_, **__: 1 / 0)
    assert participant.gradient_sum(terms, 1, weights).shape == (LENGTH,)


def test_a_sum_that_overflows_does_not_show_that_a_client_sat_out(
    owner: Any, make_terms: Make, weights: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    participant = enrolled(owner.open_with(False), make_terms())
    infinite = torch.full((LENGTH,), math.inf)
    monkeypatch.setattr(gradient_sums, "clipped_gradient_sum", lambda *_, **__: infinite)
    assert np.isfinite(participant.gradient_sum(make_terms(), 1, weights)).all()


MODELS = {
    "too short": bytes(4 * LENGTH - 4),
    "too long": bytes(4 * LENGTH + 4),
    "doubles": bytes(8 * LENGTH),
    "empty": b"",
    "no bytes": [0.0] * LENGTH,
    "nothing": None,
    "nan": bytes(4 * LENGTH - 4) + np.float32(math.nan).tobytes(),
    "infinite": np.float32(math.inf).tobytes() + bytes(4 * LENGTH - 4),
}


@pytest.mark.parametrize("content", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("mode", [Mode.UNTRUSTED, Mode.TRUSTED])
def test_a_model_that_cannot_be_used_is_refused_and_nothing_charged(
    owner: Any, make_terms: Make, weights: bytes, mode: Mode, content: object
) -> None:
    terms = make_terms(mode)
    participant = enrolled(owner.open_with(True), terms)
    with pytest.raises(UnansweredError, match="a model that cannot be used"):
        participant.gradient_sum(terms, 1, content)
    assert owner.entries("charge") == []
    participant.gradient_sum(terms, 1, weights)


def test_a_model_of_huge_numbers_is_answered_like_any_other(owner: Any, make_terms: Make) -> None:
    participant = enrolled(owner.open_with(True, False), make_terms())
    huge = vector_to_bytes(np.full(LENGTH, 3e38, np.float32))
    for round_ in (1, 2):
        assert np.isfinite(participant.gradient_sum(make_terms(), round_, huge)).all()


@pytest.mark.parametrize("round_", [0, -3, 9])
def test_a_round_outside_of_the_plan_is_not_answered(
    owner: Any, make_terms: Make, weights: bytes, round_: int
) -> None:
    participant = enrolled(owner.open(), make_terms())
    with pytest.raises(UnansweredError, match="are not all in 1 to 8"):
        participant.gradient_sum(make_terms(), round_, weights)
    assert owner.entries("charge") == []


def test_no_reply_depends_on_which_labels_there_are(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    terms = make_terms(Mode.TRUSTED, classes=4, q=1.0)
    participant = enrolled(owner.open_with(True), terms)
    small = build_model("digits", classes=4)
    content = vector_to_bytes(
        np.concatenate([p.detach().numpy().ravel() for p in small.parameters()])
    )
    total = participant.gradient_sum(terms, 1, content)
    data = load_local_data(load_policy(owner.policy))
    known = data.targets < 4
    expected = clipped_gradient_sum(
        small, to_tensor(data.inputs[known]), torch.from_numpy(data.targets[known]), 1.0
    )
    np.testing.assert_allclose(total, expected.numpy(), atol=1e-6)


def test_another_experiments_model_in_between_changes_nothing(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    one, two = make_terms(Mode.NONE, q=1.0), make_terms(Mode.NONE, experiment="b", classes=12)
    participant = enrolled(enrolled(owner.open_with(randomness=Heads()), one), two)
    other = vector_to_bytes(np.zeros(LENGTH + 2 * 33, np.float32))
    participant.gradient_sum(two, 1, other)
    total = participant.gradient_sum(one, 1, weights)
    np.testing.assert_allclose(total, exact_sum(owner, weights), atol=1e-6)


def test_without_privacy_nothing_is_charged_and_coins_are_still_flipped_once(
    owner: Any, make_terms: Make, caplog: pytest.LogCaptureFixture
) -> None:
    terms = make_terms(Mode.NONE, rounds=1000, rounds_per_invitation=1000)
    participant = enrolled(owner.open(), terms)
    coins = participant.flip(terms, range(1, 1001))
    assert participant.flip(terms, range(1, 1001)) == coins
    assert {True, False} == set(coins)
    assert owner.entries() == []
    assert "NO PRIVACY" in caplog.text


def test_a_seeded_client_is_stamped_insecure(
    owner: Any, make_terms: Make, weights: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    owner.change(insecure_seed=7)
    terms = make_terms()
    enrolled(owner.open(), terms).gradient_sum(terms, 1, weights)
    assert "INSECURE" in caplog.text
    assert not any(entry.secure for entry in owner.entries())


def test_a_client_that_is_not_seeded_is_secure(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    participant = enrolled(owner.open(), make_terms())
    participant.gradient_sum(make_terms(), 1, weights)
    assert all(entry.secure for entry in owner.entries())
    assert isinstance(participant._randomness, SecureRandom)
