"""A data owner's client without Flower: what it charges, what it answers, what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import client.participant
from accounting.ledger import Ledger
from accounting.ledger_file import LedgerError
from client.data import LocalData, load_local_data
from client.participant import Participant, UnansweredError
from learning import SecureRandom, build_model, clipped_gradient_sum, load_parameters, to_tensor
from learning.lattice import lattice_cell
from protocol.messages import vector_from_bytes, vector_to_bytes
from protocol.policy import Refusal, RefusedError, load_policy
from protocol.terms import Mode, Terms

Make = Callable[..., Terms]
LENGTH = 64 * 32 + 32 + 32 * 10 + 10
SPEAKING = [Mode.TRUSTED, Mode.QUIET]


class Recorder:
    """Secure randomness that remembers what it was asked for."""

    insecure = False

    def __init__(self) -> None:
        self._source = SecureRandom()
        self.calls: list[tuple[str, float, float]] = []
        self.batches: list[int] = []

    def coin(self, p: float) -> bool:
        return self._source.coin(p)

    def sample_indices(self, n: int, q: float) -> npt.NDArray[np.int64]:
        self.calls.append(("sample", n, q))
        rows = self._source.sample_indices(n, q)
        self.batches.append(len(rows))
        return rows

    def normal(self, size: int, std: float) -> npt.NDArray[np.float32]:
        self.calls.append(("noise", size, std))
        return self._source.normal(size, std)


def enrolled(participant: Participant, terms: Terms) -> Participant:
    participant.enrol(terms)
    return participant


def refused(action: Callable[[], object]) -> Refusal:
    with pytest.raises(RefusedError) as caught:
        action()
    return caught.value.refusal


# Enrolment


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode.is_private])
def test_enrolment_commits_the_planned_rounds(owner: Any, make_terms: Make, mode: Mode) -> None:
    terms = make_terms(mode)
    assert owner.open().enrol(terms) == 30
    (entry,) = owner.entries()
    assert (entry.kind, entry.experiment, entry.rounds) == ("commit", terms.ledger_key, 8)
    with Ledger.open(owner.ledger) as ledger:
        assert ledger.tallies()[0].terms == terms.round_cost(30)


def test_enrolling_twice_is_free(owner: Any, make_terms: Make) -> None:
    enrolled(owner.open(), make_terms()).enrol(make_terms())
    owner.open().enrol(make_terms())
    assert len(owner.entries()) == 1


@pytest.mark.parametrize(
    ("limit", "changes", "refusal"),
    [
        ({"modes": ["trusted"]}, {}, Refusal.MODE),
        ({"largest_p": 0.4}, {}, Refusal.PARTICIPATION),
        ({"largest_q": 0.4}, {}, Refusal.SAMPLING),
        ({}, {"clip_norm": 1.1}, Refusal.CLIPPING),
        ({}, {"noise_multiplier": 1.4}, Refusal.NOISE),
        ({"models": ["paper-cnn"]}, {}, Refusal.MODEL),
        ({}, {"model": "os:system"}, Refusal.MODEL),
        ({}, {"model": "paper-cnn"}, Refusal.MODEL),
        ({}, {"p": 5e-324, "q": 5e-324}, Refusal.TERMS),
    ],
)
def test_weaker_or_strange_terms_are_refused_and_leave_no_trace(
    owner: Any,
    make_terms: Make,
    weights: bytes,
    limit: dict[str, Any],
    changes: dict[str, Any],
    refusal: Refusal,
) -> None:
    owner.change(**limit)
    participant, terms = owner.open(), make_terms(**changes)
    assert refused(lambda: participant.enrol(terms)) is refusal
    with pytest.raises((RefusedError, LedgerError, RuntimeError, ValueError)):
        participant.gradient_sum(terms, 1, weights)
    assert owner.entries() == []


@pytest.mark.parametrize("epsilon", [0, 0.01])
def test_a_budget_that_does_not_suffice_is_refused_before_anything_is_charged(
    owner: Any, make_terms: Make, weights: bytes, epsilon: float
) -> None:
    owner.change(budget={"epsilon": epsilon, "delta": 1e-5})
    participant = owner.open()
    assert refused(lambda: participant.enrol(make_terms())) is Refusal.BUDGET
    with pytest.raises(LedgerError):
        participant.gradient_sum(make_terms(), 1, weights)
    assert owner.entries() == []


def test_what_other_experiments_committed_counts(owner: Any, make_terms: Make) -> None:
    participant = enrolled(owner.open(), make_terms())
    with Ledger.open(owner.ledger) as ledger:
        committed = ledger.committed(1e-5)
    owner.change(budget={"epsilon": 1.2 * committed, "delta": 1e-5})
    participant = owner.open()
    participant.enrol(make_terms())
    other = make_terms(experiment="other")
    assert refused(lambda: participant.enrol(other)) is Refusal.BUDGET


def test_the_same_name_with_other_terms_is_another_experiment(owner: Any, make_terms: Make) -> None:
    participant = enrolled(owner.open(), make_terms())
    participant.enrol(make_terms(noise_multiplier=2.0))
    assert len({entry.experiment for entry in owner.entries("commit")}) == 2


def test_a_damaged_ledger_lets_nobody_in(owner: Any, make_terms: Make) -> None:
    enrolled(owner.open(), make_terms()).ledger.close()
    content = bytearray(owner.ledger.read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    owner.ledger.write_bytes(content)
    with pytest.raises(LedgerError):
        owner.open().enrol(make_terms())


def test_a_missing_ledger_or_one_of_other_data_lets_nobody_in(owner: Any) -> None:
    owner.change(ledger="elsewhere.db")
    with pytest.raises(LedgerError, match="There is no ledger"):
        owner.open()
    owner.change(ledger="ward7.db", data_set="ward 8")
    with pytest.raises(LedgerError, match="belongs to data set 'ward 7'"):
        owner.open()


# A policy that was edited after enrolment


def test_a_larger_declared_size_is_not_charged_at_the_old_price(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    enrolled(owner.open(), make_terms()).ledger.close()
    owner.change(declared_size=60)
    participant = owner.open()
    assert refused(lambda: participant.enrol(make_terms())) is Refusal.LEDGER
    with pytest.raises(LedgerError, match="price"):
        participant.gradient_sum(make_terms(), 1, weights)
    with pytest.raises(LedgerError, match="price"):
        enrolled(participant, make_terms(Mode.TRUSTED, experiment="b")).flip(
            make_terms(Mode.TRUSTED), [1]
        )
    assert owner.entries("charge") == []


def test_a_budget_that_was_lowered_stops_what_was_enrolled(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    enrolled(owner.open(), make_terms()).ledger.close()
    owner.change(budget={"epsilon": 0.1, "delta": 1e-5})
    participant = owner.open()
    assert refused(lambda: participant.enrol(make_terms())) is Refusal.BUDGET
    with pytest.raises(LedgerError, match=r"budget is 0\.1 now"):
        participant.gradient_sum(make_terms(), 1, weights)
    assert owner.entries("charge") == []


def test_a_limit_that_was_tightened_stops_what_was_enrolled(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    enrolled(owner.open(), make_terms(Mode.TRUSTED)).ledger.close()
    owner.change(least_noise_multiplier=1.6)
    participant, terms = owner.open(), make_terms(Mode.TRUSTED)
    assert refused(lambda: participant.flip(terms, [1])) is Refusal.NOISE
    assert refused(lambda: participant.gradient_sum(terms, 1, weights)) is Refusal.NOISE
    assert owner.entries("charge") == []


# Coins


@pytest.mark.parametrize("mode", SPEAKING)
def test_every_coin_is_charged_heads_or_tails(owner: Any, make_terms: Make, mode: Mode) -> None:
    terms = make_terms(mode)
    participant = enrolled(owner.open_with(True, False, False), terms)
    assert participant.flip(terms, range(1, 4)) == [True, False, False]
    charges = owner.entries("charge")
    assert [(entry.round, entry.coin) for entry in charges] == [(1, True), (2, False), (3, False)]


def test_a_replayed_invitation_gives_the_same_coins_and_charges_nothing(
    owner: Any, make_terms: Make
) -> None:
    terms = make_terms(Mode.TRUSTED)
    participant = enrolled(owner.open(), terms)
    coins = participant.flip(terms, range(1, 5))
    before = owner.entries()
    assert participant.flip(terms, range(1, 5)) == coins
    participant.ledger.close()
    assert owner.open().flip(terms, range(1, 5)) == coins
    assert owner.entries() == before


def test_overlapping_invitations_flip_each_coin_once(owner: Any, make_terms: Make) -> None:
    terms = make_terms(Mode.TRUSTED)
    participant = enrolled(owner.open_with(True, False), terms)
    assert participant.flip(terms, [1, 2]) == [True, False]
    assert participant.flip(terms, [2, 3]) == [False, True]
    assert len(owner.entries("charge")) == 3


def test_untrusted_servers_see_no_coins(owner: Any, make_terms: Make) -> None:
    participant = enrolled(owner.open(), make_terms())
    with pytest.raises(UnansweredError, match="reveals no coins"):
        participant.flip(make_terms(), [1])
    assert owner.entries("charge") == []


@pytest.mark.parametrize("rounds", [[0], [-1], [9], [8, 9], range(8, 10)])
def test_rounds_outside_of_the_plan_are_not_charged(
    owner: Any, make_terms: Make, rounds: Sequence[int]
) -> None:
    terms = make_terms(Mode.TRUSTED)
    participant = enrolled(owner.open(), terms)
    with pytest.raises(UnansweredError, match="are not all in 1 to 8"):
        participant.flip(terms, rounds)
    assert owner.entries("charge") == []


def test_nobody_is_charged_for_an_experiment_not_enrolled_in(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    participant = enrolled(owner.open(), make_terms(Mode.TRUSTED))
    other = make_terms(Mode.TRUSTED, experiment="other")
    with pytest.raises(LedgerError, match="is not enrolled"):
        participant.flip(other, [1])
    with pytest.raises(LedgerError, match="is not enrolled"):
        participant.gradient_sum(other, 1, weights)
    assert owner.entries("charge") == []


class FaultyLedger:
    """A ledger that fails at one of its deeds."""

    def __init__(self, ledger: Ledger, fails_at: str) -> None:
        self._ledger = ledger
        self._fails_at = fails_at

    def __getattr__(self, name: str) -> Any:
        if name == self._fails_at:
            raise LedgerError("The disk is full. Nothing was charged.")
        return getattr(self._ledger, name)


@pytest.mark.parametrize("fails_at", ["charge_all", "claim_answer", "tallies"])
@pytest.mark.parametrize("mode", [Mode.UNTRUSTED, Mode.LOCAL_ONLY])
def test_if_the_ledger_fails_the_data_is_not_touched(
    owner: Any,
    make_terms: Make,
    weights: bytes,
    monkeypatch: pytest.MonkeyPatch,
    fails_at: str,
    mode: Mode,
) -> None:
    terms = make_terms(mode)
    enrolled(owner.open(), terms).ledger.close()
    faulty = FaultyLedger(Ledger.open(owner.ledger), fails_at)
    recorder = Recorder()
    participant = owner.open_with(ledger=faulty, randomness=recorder)
    with pytest.raises(LedgerError, match="disk is full"):
        participant.gradient_sum(terms, 1, weights)
    assert recorder.calls == []


def test_if_the_ledger_fails_no_coin_comes_out(owner: Any, make_terms: Make) -> None:
    terms = make_terms(Mode.TRUSTED)
    enrolled(owner.open(), terms).ledger.close()
    participant = owner.open_with(ledger=FaultyLedger(Ledger.open(owner.ledger), "charge_all"))
    with pytest.raises(LedgerError, match="disk is full"):
        participant.flip(terms, [1])


def test_charge_and_answer_are_on_disk_before_the_data_is_touched(
    owner: Any, make_terms: Make, weights: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    participant = enrolled(owner.open(), make_terms())
    seen: list[list[tuple[str, int | None]]] = []

    class Watching(Recorder):
        def sample_indices(self, n: int, q: float) -> npt.NDArray[np.int64]:
            seen.append([(entry.kind, entry.round) for entry in owner.entries()])
            return super().sample_indices(n, q)

    monkeypatch.setattr(participant, "_randomness", Watching())
    participant.gradient_sum(make_terms(), 5, weights)
    assert seen == [[("commit", None), ("charge", 5), ("answer", 5)]]


# Answers


@pytest.mark.parametrize("mode", Mode)
def test_a_round_is_answered_once(owner: Any, make_terms: Make, weights: bytes, mode: Mode) -> None:
    terms = make_terms(mode)
    participant = enrolled(owner.open_with(True, randomness=Heads()), terms)
    participant.gradient_sum(terms, 3, weights)
    with pytest.raises(UnansweredError, match="round 3 was answered before"):
        participant.gradient_sum(terms, 3, weights)


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


def exact_sum(owner: Any, weights: bytes, clip_norm: float = 1.0) -> npt.NDArray[np.float32]:
    data = load_local_data(load_policy(owner.policy))
    model = build_model("digits", classes=10)
    load_parameters(model, vector_from_bytes(weights, LENGTH))
    targets = torch.from_numpy(data.targets)
    total = clipped_gradient_sum(model, to_tensor(data.inputs), targets, clip_norm)
    result: npt.NDArray[np.float32] = total.numpy()
    return result


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

    def counted(model: Any, inputs: Any, targets: Any, clip_norm: float) -> torch.Tensor:
        recorder.calls.append(("gradient", len(inputs) - recorder.batches[-1], clip_norm))
        return clipped_gradient_sum(model, inputs, targets, clip_norm)

    monkeypatch.setattr(client.participant, "clipped_gradient_sum", counted)
    work = []
    for round_ in (1, 2):
        recorder.calls.clear()
        participant.gradient_sum(terms, round_, weights)
        work.append(list(recorder.calls))
    assert work[0] == [("sample", 30, 0.5), ("gradient", 0, 1.0), ("noise", LENGTH, 1.5)]
    assert work[1] == work[0]
    writes = [(entry.kind, entry.round) for entry in owner.entries()[1:]]
    assert writes == [("charge", 1), ("answer", 1), ("charge", 2), ("answer", 2)]


def test_a_gradient_that_fails_does_not_show_where_the_client_adds_noise(
    owner: Any, make_terms: Make, weights: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = make_terms()
    participant = enrolled(owner.open_with(True, False), terms)

    def fail(*_: object) -> torch.Tensor:
        raise RuntimeError("patient 17 is peculiar")

    monkeypatch.setattr(client.participant, "clipped_gradient_sum", fail)
    for round_ in (1, 2):
        sent = participant.gradient_sum(terms, round_, weights)
        assert variance_p_value(sent, terms.noise_std) > 1e-6


def test_a_sum_that_overflows_does_not_show_that_a_client_sat_out(
    owner: Any, make_terms: Make, weights: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    participant = enrolled(owner.open_with(False), make_terms())
    infinite = torch.full((LENGTH,), math.inf)
    monkeypatch.setattr(client.participant, "clipped_gradient_sum", lambda *_: infinite)
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


# Statistics: each fails falsely less than once in 10⁶ runs, and must reject what is 10 % off.

LEVEL = 1e-7


def binomial_p_value(successes: int, trials: int, p: float) -> float:
    from scipy import stats

    return float(stats.binomtest(successes, trials, p).pvalue)


def variance_p_value(values: npt.NDArray[np.float32], std: float) -> float:
    from scipy import stats

    statistic = float((values.astype(np.float64) ** 2).sum() / std**2)
    law = stats.chi2(len(values))
    return float(2 * min(law.cdf(statistic), law.sf(statistic)))


def test_participation_follows_p_and_no_other_probability(owner: Any, make_terms: Make) -> None:
    rounds = 16_000
    terms = make_terms(
        Mode.TRUSTED, rounds=rounds, rounds_per_invitation=rounds, noise_multiplier=50.0
    )
    participant = enrolled(owner.open(), terms)
    joined = sum(participant.flip(terms, range(1, rounds + 1)))
    assert binomial_p_value(joined, rounds, 0.5) > LEVEL
    assert binomial_p_value(joined, rounds, 0.45) < LEVEL
    assert binomial_p_value(joined, rounds, 0.55) < LEVEL


def test_batch_sizes_follow_q_and_no_other_rate(
    owner: Any, make_terms: Make, weights: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scipy import stats

    rounds, copies = 60, 10
    recorder = Recorder()
    owner.change(declared_size=30 * copies)
    terms = make_terms(rounds=rounds, noise_multiplier=3.0)
    participant = enrolled(owner.open_with(True, False, randomness=recorder), terms)
    data = participant._data
    monkeypatch.setattr(
        participant,
        "_data",
        LocalData(
            inputs=np.tile(data.inputs, (copies, 1, 1)), targets=np.tile(data.targets, copies)
        ),
    )
    for round_ in range(1, rounds + 1):
        participant.gradient_sum(terms, round_, weights)
    sizes, trials = np.array(recorder.batches), 30 * copies
    total = int(sizes.sum())
    assert len(sizes) == rounds
    assert binomial_p_value(total, rounds * trials, 0.5) > LEVEL
    assert binomial_p_value(total, rounds * trials, 0.45) < LEVEL
    assert binomial_p_value(total, rounds * trials, 0.55) < LEVEL
    spread = float(((sizes - trials / 2) ** 2).sum() / (trials / 4))
    assert LEVEL < stats.chi2(rounds).cdf(spread) < 1 - LEVEL


@pytest.mark.parametrize("falls", [True, False])
def test_the_noise_of_untrusted_answers_has_the_agreed_variance(
    owner: Any, make_terms: Make, weights: bytes, falls: bool
) -> None:
    terms = make_terms(q=1.0, noise_multiplier=2.0, clip_norm=0.5)
    participant = enrolled(owner.open_with(falls), terms)
    under = exact_sum(owner, weights, 0.5) if falls else np.zeros(LENGTH, np.float32)
    noise = np.concatenate(
        [participant.gradient_sum(terms, round_, weights) - under for round_ in range(1, 6)]
    )
    std = 2.0 * 0.5
    assert variance_p_value(noise, std) > LEVEL
    assert variance_p_value(noise, 0.9 * std) < LEVEL
    assert variance_p_value(noise, 1.1 * std) < LEVEL


def test_a_participant_and_its_absence_differ_by_the_gradient_alone(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    from scipy import stats

    terms = make_terms(q=1.0)
    participant = enrolled(owner.open_with(True, False), terms)
    joined = participant.gradient_sum(terms, 1, weights) - exact_sum(owner, weights)
    sat_out = participant.gradient_sum(terms, 2, weights)
    assert stats.ks_2samp(joined, sat_out).pvalue > LEVEL
