"""A model of 11 million parameters on its way through the gateway, to clients and back."""

import numpy as np
import pytest
from safetensors import safe_open

from coinflower.accounting.ledger.ledger import Ledger
from coinflower.server.journal import read_metrics
from tests.hosts.federation import Federation
from tests.hosts.network import TO_THE_END

pytestmark = pytest.mark.hosts

ROUNDS = 3
ROWS = 40
IN_SETTINGS = [
    ("rounds = 400", f"rounds = {ROUNDS}"),
    ("rounds_per_invitation = 5", "rounds_per_invitation = 2"),
    ("p = 0.5", "p = 1.0"),
    ("expected_clients = 3", "expected_clients = 2"),
    ("reply_seconds = 20 ", "reply_seconds = 200 "),
    ("# upload_seconds = 20 ", "upload_seconds = 200 "),
    ('test_data = "digits"', 'test_data = "images.npz"'),
    ('model = "digits"', 'row_shape = [3, 32, 32]\nmodel = "resnet18-gn"'),
    ('optimizer = "sgd"', 'optimizer = "adam"'),
    ("learning_rate = 2.0", "learning_rate = 0.001"),
]
IN_POLICY = [
    ('data = "digits"', 'data = "images.npz"'),
    ("declared_size = 480", f"declared_size = {ROWS}"),
    ("largest_p = 0.5", "largest_p = 1.0"),
    ("[share]", "# no [share]"),
    ("clients = 3", "# clients"),
    ("index = ", "# index = "),
]


def write_images(folder, seed):
    """Write coloured images whose class shows in their colours."""
    random = np.random.default_rng(seed)
    targets = random.integers(0, 10, ROWS)
    colours = np.random.default_rng(0).random((10, 3, 1, 1))
    images = 0.7 * colours[targets] + 0.3 * random.random((ROWS, 3, 32, 32))
    np.savez(folder / "images.npz", x=images.astype(np.float32), y=targets)


class Images(Federation):
    """Clients with images of their own."""

    def equip(self, client, index):
        super().equip(client, index)
        write_images(client.folder, seed=index + 1)
        policy = client.folder / "policy.toml"
        text = policy.read_text()
        for before, after in IN_POLICY:
            assert before in text, before
            text = text.replace(before, after)
        policy.write_text(text)


def test_a_model_of_eleven_million_parameters_trains_through_the_gateway(network):
    server = network.add("server")
    federation = Images(server, [network.add("ward-7"), network.add("ward-8")], rounds=ROUNDS)
    write_images(server.folder, seed=9)
    federation.set_up(*IN_SETTINGS)
    assert federation.running.wait(TO_THE_END) == 0, server.log("server.log")
    rounds = read_metrics(server.folder / "state")
    assert [(row["round"], row["answered"], row["dropped"]) for row in rounds] == [
        (round_, 2, 0) for round_ in range(1, ROUNDS + 1)
    ]
    with safe_open(server.folder / "state" / "model.safetensors", "numpy") as model:
        kept = [model.get_tensor(name) for name in model.keys()]  # noqa: SIM118
    parameters = sum(values.size for values in kept)
    assert parameters > 11_000_000
    assert {row["received_bytes"] for row in rounds} == {2 * 4 * parameters}
    assert all(np.isfinite(values).all() for values in kept)
    for client in federation.clients:
        with Ledger.open(client.folder / "ledger.db") as ledger:
            assert len(list(ledger.history())) >= ROUNDS
