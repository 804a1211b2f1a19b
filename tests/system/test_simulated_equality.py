"""Ten rounds over a real cluster and in the simulator, with the same draws, give the same model.

The cluster is seeded, so that every client's coins, samples and noise can be drawn once more from
its policy. Coins come from the ledgers themselves; the rest is fed to the simulator.
"""

from dataclasses import replace

import numpy as np
import pytest
from safetensors.torch import load_file

from coinflower.client.data import load_local_data
from coinflower.deploy.local.cluster import prepare
from coinflower.experiments.simulator.simulator import Draw, Scenario, Simulator
from coinflower.learning import (
    SeededRandom,
    Update,
    build_model,
    flatten_parameters,
    load_data,
    partition,
)
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import load_policy
from tests.support.federations import Federation, check_ledgers, plan

ROUNDS = 10
UPDATE = Update(learning_rate=0.5, momentum=0.9)
SEED = 11
TOLERANCE = 1e-5


class Replay(Simulator):
    """A simulator whose coins and samples are given."""

    def __init__(self, *arguments, draws, **options):
        super().__init__(*arguments, **options)
        self._draws = iter(draws)

    def draw(self):
        return next(self._draws)


class Noises:
    """Gives the noise that many parties added, as one of the deviation that is asked for."""

    def __init__(self, vectors, noise_std):
        self._vectors = iter(vectors)
        self._noise_std = noise_std

    def normal(self, size, std):
        vectors = next(self._vectors)
        assert all(len(vector) == size for vector in vectors)
        unit = sum(vectors, np.zeros(size)) / (self._noise_std * np.sqrt(max(1, len(vectors))))
        return std * unit


class Played:
    """A cluster after its run: its weights, and its draws as its policies tell them."""

    def __init__(self, cluster):
        terms = cluster.terms
        model = build_model(terms.model, classes=terms.classes)
        model.load_state_dict(load_file(cluster.server / "model.safetensors"))
        self.weights = flatten_parameters(model).numpy()
        self.coins = [list(coins.values()) for coins in check_ledgers(cluster).values()]
        policies = [load_policy(path) for path in cluster.policies]
        self.sizes = np.array([len(load_local_data(policy)) for policy in policies])
        drawn = [
            _draws_of(terms, SeededRandom(policy.insecure_seed), coins, size, self.weights.size)
            for policy, coins, size in zip(policies, self.coins, self.sizes, strict=True)
        ]
        starts = np.cumsum(self.sizes) - self.sizes
        self.draws = []
        for round_ in range(ROUNDS):
            joined = [i for i, coins in enumerate(self.coins) if coins[round_]]
            rows = [starts[i] + drawn[i][round_][0] for i in joined]
            owners = [np.full(len(mine), i) for i, mine in zip(joined, rows, strict=True)]
            self.draws.append(
                Draw(
                    sampled=np.concatenate([np.empty(0, np.int64), *rows]),
                    owners=np.concatenate([np.empty(0, np.int64), *owners]),
                    participants=len(joined),
                    available=len(policies),
                    available_size=int(self.sizes.sum()),
                )
            )
        server = SeededRandom(SEED)
        if terms.mode.server_adds_noise:
            noises = [[server.normal(self.weights.size, terms.noise_std)] for _ in range(ROUNDS)]
        else:
            each = zip(*drawn, strict=True)
            noises = [[noise for _, noise in round_ if noise is not None] for round_ in each]
        self.noises = noises
        self.terms = terms

    def simulate(self, *, draws=None, **changes):
        """Return the simulator's weights, with another scenario if asked for."""
        terms, data = self.terms, load_data("digits")
        scenario = Scenario(
            sizes=self.sizes,
            p=terms.p,
            q=terms.q,
            clip_norm=terms.clip_norm,
            noise_multiplier=terms.noise_multiplier,
            noise=terms.mode,
            update=UPDATE,
        )
        shares = partition(data, clients=len(self.sizes), how="dirichlet", seed=SEED)
        run = Replay(
            replace(scenario, **changes),
            data.train,
            build_model(terms.model, classes=terms.classes),
            np.random.default_rng(),
            Noises(self.noises, terms.noise_std),
            rows=np.concatenate(shares),
            draws=draws or self.draws,
        )
        for _ in range(ROUNDS):
            run.step()
        return run.optimizer.weights

    def distance(self, **changes):
        """Return the largest difference of any weight."""
        return np.abs(self.simulate(**changes) - self.weights).max()


def _draws_of(terms, randomness, coins, size, parameters):
    """Return rows and noise of a client by round, drawn in the order in which it drew them."""
    drawn = []
    if not terms.mode.answers_always:  # all coins came with the one invitation
        assert [randomness.coin(terms.p) for _ in coins] == coins
    for coin in coins:
        if terms.mode.answers_always:
            assert randomness.coin(terms.p) == coin
        works = coin or terms.mode.answers_always
        rows = randomness.sample_indices(size, terms.q) if works else None
        noisy = works and terms.mode.client_adds_noise
        drawn.append((rows, randomness.normal(parameters, terms.noise_std) if noisy else None))
    return drawn


@pytest.fixture(scope="module", params=[Mode.TRUSTED, Mode.UNTRUSTED], ids=str)
def played(request, tmp_path_factory):
    """Run a small federation of unequal clients in which every draw is seeded."""
    fields = {"how": "dirichlet", "rounds": ROUNDS, "rounds_per_invitation": ROUNDS}
    fields["waits_for_all"] = True
    terms = plan(mode=request.param, update=UPDATE, clip_norm=0.7, insecure_seed=SEED, **fields)
    run = Federation(prepare(terms, tmp_path_factory.mktemp("equality") / "run"))
    try:
        assert run.finish() is None
    finally:
        run.close()
    return Played(run.cluster)


def test_ten_rounds_of_the_cluster_and_of_the_simulator_give_the_same_weights(played):
    assert len(set(played.sizes.tolist())) > 1
    assert 0 < sum(map(sum, played.coins)) < ROUNDS * len(played.coins)
    assert played.distance() <= TOLERANCE


@pytest.mark.parametrize(
    "change",
    [
        {"p": 0.501},
        {"q": 0.1002},
        {"noise_multiplier": 1.002},
        {"noise": Mode.NONE},
        {"clip_norm": 0.701},
        {"update": Update(learning_rate=0.501, momentum=0.9)},
        {"update": Update(learning_rate=0.5, momentum=0.899)},
    ],
    ids="-".join,
)
def test_a_simulator_that_differs_in_the_slightest_is_caught(played, change):
    assert played.distance(**change) > 10 * TOLERANCE


def test_noise_of_another_model_is_caught(played):
    others = {Mode.TRUSTED, Mode.UNTRUSTED} - {played.terms.mode}
    assert all(played.distance(noise=other) > 10 * TOLERANCE for other in others)


def test_a_single_sample_more_is_caught(played):
    first = played.draws[0]
    other = np.setdiff1d(np.arange(played.sizes.sum()), first.sampled)[:1]
    owner = np.searchsorted(np.cumsum(played.sizes), other, side="right")
    more = replace(
        first,
        sampled=np.concatenate([first.sampled, other]),
        owners=np.concatenate([first.owners, owner]),
    )
    assert played.distance(draws=[more, *played.draws[1:]]) > 10 * TOLERANCE


def test_a_client_counted_as_away_is_caught(played):
    away = [replace(one, available_size=one.available_size - 5) for one in played.draws]
    assert played.distance(draws=away) > 10 * TOLERANCE
