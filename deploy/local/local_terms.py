"""The terms of a local federation: the noise that the budget needs, and evaluations and masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from coinflower.accounting.composition.calibration import least_sigma
from coinflower.accounting.composition.compose import Rounds, epsilon_after
from coinflower.accounting.errors import UserError
from coinflower.accounting.mechanism import Round
from coinflower.accounting.rounding import rounded_up
from coinflower.deploy.local.plan import Plan
from coinflower.learning import (
    Dataset,
    Task,
    subject_of,
)
from coinflower.masking.sealing import public_bytes
from coinflower.protocol.masked_terms import masked_fields
from coinflower.protocol.terms import Terms
from coinflower.server.evaluations import EvaluationSettings


def terms_of(
    plan: Plan,
    experiment: str,
    data: Dataset,
    task: Task,
    sizes: Sequence[int],
    notary: X25519PrivateKey,
    evaluation: EvaluationSettings | None,
) -> Terms:
    """Return what clients are asked to agree to, with noise that the budget of each allows.

    Raises:
        ValueError: The plan makes no sense, or costs more than its budget.
    """
    if plan.mode.is_private and plan.epsilon == 0:
        raise UserError("epsilon = 0 is a budget of nothing: no round may be played.")
    largest_size = max(sizes)
    beside = _evaluation_rounds(plan, evaluation, largest_size)
    sigma = sigma_of(plan, largest_size, beside)
    terms = Terms(
        experiment=experiment,
        mode=plan.mode,
        p=plan.p,
        q=plan.q,
        clip_norm=plan.clip_norm,
        clipping=plan.clipping,
        cap=plan.cap,
        noise_multiplier=sigma,
        rounds=plan.rounds,
        rounds_per_invitation=plan.rounds_per_invitation,
        unit=plan.unit,
        **subject_of(
            data,
            task,
            model=None if plan.model is None else str(plan.model),
            model_options=plan.model_options,
            tuning=plan.tuning,
            task=plan.task,
            task_options=plan.task_options,
        ),
        **masked_fields_of(plan, sigma, sizes, notary),
    )
    _require_within_budget(plan, terms, largest_size, beside)
    return terms


def evaluation_of(plan: Plan, largest_size: int) -> EvaluationSettings | None:
    """Return how the model is measured on clients' records, with the noise that its ε needs."""
    scheme = plan.mode.scheme
    if plan.evaluation_epsilon is None or scheme is None:
        return None
    sigma = least_sigma(
        scheme,
        p=plan.p,
        q=plan.q,
        d=largest_size,
        epsilon=plan.evaluation_epsilon,
        delta=plan.delta,
        rounds=math.ceil(plan.rounds / plan.evaluate_every),
        cap=plan.cap,
    )
    return EvaluationSettings(
        every=plan.evaluate_every, noise_multiplier=sigma, metrics=plan.evaluation_metrics
    )


def _evaluation_rounds(plan: Plan, evaluation: EvaluationSettings | None, size: int) -> Rounds:
    """Return what all evaluations cost a client of a size."""
    if evaluation is None or plan.mode.scheme is None:
        return []
    cost = plan.mode.scheme(Round(plan.p, plan.q, size, evaluation.noise_multiplier, plan.cap))
    return [(cost, math.ceil(plan.rounds / evaluation.every))]


def masked_fields_of(
    plan: Plan, sigma: float, sizes: Sequence[int], notary: X25519PrivateKey
) -> dict[str, Any]:
    """Return what mode masked adds to the terms."""
    if not plan.mode.masks_sums:
        return {}
    return masked_fields(
        sizes=sizes,
        q=plan.q,
        cap=plan.cap,
        clip_norm=plan.clip_norm,
        noise_multiplier=sigma,
        notaries=[public_bytes(notary).hex()],
        threshold=plan.threshold,
        colluders=plan.colluders,
    )


def sigma_of(plan: Plan, largest_size: int, beside: Rounds = ()) -> float:
    """Return the noise that was stated, or that the budget needs.

    Args:
        plan: What is asked for.
        largest_size: Of a client.
        beside: Other rounds that the budget must cover, too.
    """
    scheme = plan.mode.scheme
    if scheme is None:
        return 0.0
    if plan.sigma is not None:
        return plan.sigma
    if plan.epsilon is None:
        raise UserError("Neither sigma nor epsilon is stated; state at least one of them.")
    return least_sigma(
        scheme,
        p=plan.p,
        q=plan.q,
        d=largest_size,
        epsilon=plan.epsilon,
        delta=plan.delta,
        rounds=plan.rounds,
        cap=plan.cap,
        beside=beside,
    )


def _require_within_budget(plan: Plan, terms: Terms, largest_size: int, beside: Rounds) -> None:
    """Refuse noise that costs more than the budget that is stated beside it.

    Raises:
        ValueError: With what it costs, and what to change.
    """
    cost = terms.round_cost(largest_size)
    if cost is None or plan.sigma is None or plan.epsilon is None:
        return
    spent = epsilon_after([*beside, (cost, terms.rounds)], plan.delta)
    if not spent <= plan.epsilon:
        raise UserError(
            f"sigma = {plan.sigma:g} costs epsilon = {rounded_up(spent, 6)} at delta = "
            f"{plan.delta:g} over {terms.rounds:,} rounds, more than the stated epsilon = "
            f"{plan.epsilon:g}; state more noise or fewer rounds, or leave out sigma to have it "
            "calibrated."
        )
