"""Can a trained classifier tell participation from abstention?

Two of them, a random forest and a logistic regression, are trained on every second round, and their
mean score is tried on the others. Coins are independent of everything that may be seen if there is
no leak, so that all orders of the tried coins are equally likely: a permutation test is exact.
"""

from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

# An AUC above the two-sided 99 % range of guesses counts as told.
FALSE_ALARM = 0.005
_PERMUTATIONS = 20_000
_RESAMPLES = 2000
_CONFIDENCE = 0.99


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How well the coins of unseen rounds were told.

    Attributes:
        auc: Probability that a participation scores above an abstention; 0.5 is guessing.
        low: Lower end of its 99 % confidence interval (bootstrap of whole rounds).
        high: Upper end.
        p_value: Probability of such an AUC, or a larger one, without a leak.
        tried: How many coins were guessed.
    """

    auc: float
    low: float
    high: float
    p_value: float
    tried: int

    @property
    def leaks(self):
        """Whether there is a leak; wrongly so once in 200 times."""
        return self.p_value < FALSE_ALARM

    def __str__(self):
        return (
            f"AUC {self.auc:.3f} [{self.low:.3f}, {self.high:.3f}] p = {self.p_value:.2g} "
            f"({self.tried} tried)"
        )


def judge(view):
    """Return how well a classifier tells the coins of a view."""
    learnt = view.rounds % 2 == 1
    scores = np.mean(
        [
            model.fit(view.rows[learnt], view.coins[learnt]).predict_proba(view.rows[~learnt])[:, 1]
            for model in (
                RandomForestClassifier(300, min_samples_leaf=3, random_state=0),
                make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000)),
            )
        ],
        axis=0,
    )
    return _verdict(scores, view.coins[~learnt], view.rounds[~learnt])


def _verdict(scores, coins, rounds):
    ranks = rankdata(scores)
    shuffled = np.random.default_rng(0).permuted(np.tile(coins, (_PERMUTATIONS, 1)), axis=1)
    beyond = np.sum(shuffled @ ranks >= ranks @ coins - 1e-9)
    low, high = _interval(scores, coins, rounds)
    return Verdict(
        auc=_auc(scores, coins),
        low=low,
        high=high,
        p_value=(1 + beyond) / (1 + _PERMUTATIONS),
        tried=len(coins),
    )


def _auc(scores, coins):
    heads, tails = coins.sum(), (~coins).sum()
    return (rankdata(scores) @ coins - heads * (heads + 1) / 2) / (heads * tails)


def _interval(scores, coins, rounds):
    """Return the interval of AUCs if rounds, whose clients may depend on each other, came anew."""
    random = np.random.default_rng(0)
    groups = [np.flatnonzero(rounds == round_) for round_ in np.unique(rounds)]
    found = []
    for _ in range(_RESAMPLES):
        drawn = np.concatenate(
            [groups[at] for at in random.integers(len(groups), size=len(groups))]
        )
        if 0 < coins[drawn].sum() < len(drawn):
            found.append(_auc(scores[drawn], coins[drawn]))
    return np.quantile(found, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
