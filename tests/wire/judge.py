"""Can a trained classifier tell participation from abstention?

Two of them, a random forest and a logistic regression, are trained on every second round, and their
mean score is tried on the others. Coins are independent of everything that may be seen if there is
no leak, so that all orders of the tried coins are equally likely: a permutation test is exact.
"""

from dataclasses import dataclass

import numpy as np
from scipy.stats import norm, rankdata
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

FALSE_ALARM = 1e-4
_PERMUTATIONS = 20_000
_CONFIDENCE = 0.99


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How well the coins of unseen rounds were told.

    Attributes:
        auc: Probability that a participation scores above an abstention; 0.5 is guessing.
        low: Lower end of its 99 % confidence interval (Hanley and McNeil).
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
        """Whether there is a leak; wrongly so with probability 1e-4."""
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
    return _verdict(rankdata(scores), view.coins[~learnt])


def _verdict(ranks, coins):
    heads, tails = coins.sum(), (~coins).sum()
    shuffled = np.random.default_rng(0).permuted(np.tile(coins, (_PERMUTATIONS, 1)), axis=1)
    reached = ranks @ coins
    beyond = np.sum(shuffled @ ranks >= reached - 1e-9)
    auc = (reached - heads * (heads + 1) / 2) / (heads * tails)
    spread = norm.ppf((1 + _CONFIDENCE) / 2) * _standard_error(auc, heads, tails)
    return Verdict(
        auc=auc,
        low=max(auc - spread, 0.0),
        high=min(auc + spread, 1.0),
        p_value=(1 + beyond) / (1 + _PERMUTATIONS),
        tried=len(coins),
    )


def _standard_error(auc, heads, tails):
    one, other = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = auc * (1 - auc) + (heads - 1) * (one - auc**2) + (tails - 1) * (other - auc**2)
    return np.sqrt(max(variance, 0.0) / (heads * tails))
