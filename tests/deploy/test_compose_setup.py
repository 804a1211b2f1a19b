"""What the first start of the container cluster makes, and what a later one leaves alone."""

from dataclasses import replace

import pytest

from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.client.node.private_key import load_private_key
from coinflower.deploy.containers.compose_options import Options
from coinflower.deploy.containers.compose_setup import Place, set_up
from coinflower.deploy.keys import keys
from coinflower.deploy.keys.keys import list_items, require_server_files
from coinflower.deploy.machines.node_registry import Registry
from coinflower.deploy.machines.notary_folder import NotaryFolder
from coinflower.masking.tickets import owner_name
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import load_policy
from coinflower.server.settings import load_settings

OPTIONS = Options(mode=Mode.TRUSTED, clients=4, rounds=3, names=("fl.example.org",))
MASKED = replace(OPTIONS, mode=Mode.MASKED)


def make_place(folder):
    return Place(
        secrets=folder / "secrets",
        server=folder / "server",
        clients=folder / "clients",
        notary=folder / "notary",
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a place that was set up once, and what was told."""
    folder = tmp_path_factory.mktemp("cluster")
    place = make_place(folder)
    place.server.mkdir()
    return place, set_up(OPTIONS, place)


def contents(place):
    return {
        path: path.read_bytes()
        for root in (place.secrets, place.server, place.clients)
        for path in root.rglob("*")
        if path.is_file()
    }


def test_keys_policies_ledgers_and_settings_are_made(made):
    place, _ = made
    settings = load_settings(place.server / "settings.toml")
    assert (settings.expected_clients, settings.terms.rounds) == (4, 3)
    for index in range(1, 5):
        policy = load_policy(place.data(index) / "policy.toml")
        with Ledger.open(policy.ledger, read_only=True) as ledger:
            assert ledger.data_set == policy.data_set
        key = place.secret(index) / f"client-{index}.key"
        assert key.stat().st_mode & 0o077 == 0
        assert (place.secret(index) / "ca.pem").exists()
        assert not (place.secret(index) / "ca.key").exists()


def test_gateway_and_server_show_certificates_of_their_names(made):
    place, _ = made
    for service, name in (("gateway", "fl.example.org"), ("server", "server")):
        require_server_files(place.secrets / service)
        names = [item.name for item in list_items(place.secrets / service) if item.kind == "server"]
        assert name in names[0].split(", ")
        assert not (place.secrets / service / "ca.key").exists()


def test_a_second_time_nothing_changes(made):
    place, _ = made
    before = contents(place)
    assert set_up(OPTIONS, place) == []
    assert contents(place) == before


def certificate(place, service):
    return (place.secrets / service / "server.pem").read_bytes()


def test_other_names_of_the_gateway_get_it_another_certificate(made):
    place, _ = made
    server = certificate(place, "server")
    (told,) = set_up(replace(OPTIONS, names=("Other.example.org", "10.0.0.7")), place)
    assert told.startswith("Made a certificate for gateway, Other.example.org, 10.0.0.7: the old")
    assert "docker compose restart gateway" in told
    shown = require_server_files(place.secrets / "gateway").name.split(", ")
    assert {"gateway", "other.example.org", "10.0.0.7"} < set(shown)
    assert certificate(place, "server") == server
    assert set_up(replace(OPTIONS, names=("Other.example.org", "10.0.0.7")), place) == []
    set_up(OPTIONS, place)


def test_a_certificate_that_ends_soon_is_replaced(made, monkeypatch):
    place, _ = made
    monkeypatch.setattr(keys, "SERVER_DAYS", 20)
    set_up(replace(OPTIONS, names=("short.example.org",)), place)
    monkeypatch.undo()
    short = certificate(place, "gateway")
    (told,) = set_up(replace(OPTIONS, names=("short.example.org",)), place)
    assert "the old one ends on" in told
    assert certificate(place, "gateway") != short
    set_up(OPTIONS, place)


def test_a_revoked_node_is_not_let_in_again(made):
    place, _ = made
    registry = Registry(place.server / "superlink" / "nodes")
    public = place.secret(2) / "client-2.pub"
    registry.revoke(public)
    assert set_up(OPTIONS, place) == []
    assert "client-2" not in registry.names().values()
    registry.allow(public)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clients": 5}, "clients = 4, not 5"),
        ({"mode": Mode.UNTRUSTED}, "mode = trusted, not untrusted"),
        ({"rounds": 9}, "rounds = 3, not 9"),
    ],
)
def test_another_cluster_is_not_put_over_the_present_one(made, change, words):
    place, _ = made
    with pytest.raises(ValueError, match=words):
        set_up(replace(OPTIONS, **change), place)


def test_a_ledger_that_is_gone_is_not_replaced(made):
    place, _ = made
    ledger = place.ledger(3) / "ledger.db"
    aside = ledger.rename(ledger.with_suffix(".aside"))
    try:
        with pytest.raises(ValueError, match="ledger of client-3 is gone"):
            set_up(OPTIONS, place)
    finally:
        aside.rename(ledger)


@pytest.mark.parametrize("value", ["", "two", "2", "-3"])
def test_a_number_of_clients_that_is_none_is_refused(value):
    with pytest.raises(ValueError, match="COINFLOWER_CLIENTS"):
        Options.read({"COINFLOWER_CLIENTS": value, "COINFLOWER_ROUNDS": "1"})


def test_clients_share_neither_secret_nor_volume(made):
    place, _ = made
    folders = [folder(i) for i in range(1, 5) for folder in (place.secret, place.data)]
    assert len({folder.resolve() for folder in folders}) == 8
    for index in range(1, 5):
        keys_there = {path.stem for path in place.secret(index).glob("client-*")}
        assert keys_there == {f"client-{index}"}
    assert {place.secret(4), place.data(4), place.ledger(4)} <= set(place.handed_out())


def test_a_policy_that_is_gone_is_not_replaced(made):
    place, _ = made
    policy = place.data(2) / "policy.toml"
    aside = policy.rename(policy.with_suffix(".aside"))
    try:
        with pytest.raises(ValueError, match="policy of client-2 is gone, and a new one would all"):
            set_up(OPTIONS, place)
    finally:
        aside.rename(policy)


@pytest.mark.parametrize(
    "stated", [{"epsilon": 0.5}, {"delta": 1e-6}, {"epsilon": 2, "delta": 1e-4}]
)
def test_a_stated_budget_is_that_of_every_client(tmp_path, stated):
    place = make_place(tmp_path)
    place.server.mkdir()
    set_up(replace(OPTIONS, **stated), place)
    terms = load_settings(place.server / "settings.toml").terms
    for index in range(1, 5):
        policy = load_policy(place.data(index) / "policy.toml")
        wanted = {"epsilon": 3.0, "delta": 1e-3, **stated}
        assert vars(policy.budget) == wanted
        policy.require(terms)
        rounds = [(terms.round_cost(policy.declared_size), terms.rounds)]
        assert epsilon_after(rounds, policy.budget.delta) <= policy.budget.epsilon


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"epsilon": 1.0}, "client-1 grants epsilon = 3, more than COINFLOWER_EPSILON = 1"),
        ({"delta": 1e-5}, "client-1 grants delta = 0.001, more than COINFLOWER_DELTA = 1e-05"),
    ],
)
def test_a_budget_stated_later_does_not_go_unheard(made, stated, words):
    place, _ = made
    before = contents(place)
    with pytest.raises(ValueError, match=words):
        set_up(replace(OPTIONS, **stated), place)
    assert contents(place) == before
    assert set_up(replace(OPTIONS, epsilon=4.0, delta=0.1), place) == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("COINFLOWER_EPSILON", "one"),
        ("COINFLOWER_EPSILON", "nan"),
        ("COINFLOWER_EPSILON", "-1"),
        ("COINFLOWER_DELTA", "0"),
        ("COINFLOWER_DELTA", "1e-5x"),
        ("COINFLOWER_MODE", "none"),
    ],
)
def test_a_limit_that_is_none_is_refused(variable, value):
    sound = {"COINFLOWER_CLIENTS": "3", "COINFLOWER_ROUNDS": "1"}
    name = variable.removeprefix("COINFLOWER_")
    with pytest.raises(ValueError, match=f"(?i){name} = "):
        Options.read({**sound, variable: value})


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """Return a place that was set up for mode masked."""
    place = make_place(tmp_path_factory.mktemp("masked"))
    place.server.mkdir()
    told = set_up(MASKED, place)
    return place, told


def test_a_masked_cluster_has_a_notary_that_knows_the_clients_and_joins_the_server(masked):
    place, told = masked
    terms = load_settings(place.server / "settings.toml").terms
    notary = NotaryFolder(place.notary / "notary")
    assert terms.notaries == (notary.public_key,)
    assert (terms.threshold, terms.colluders) == (4, 1)
    assert sorted(notary.registry.keys()) == [f"client-{index}" for index in range(1, 5)]
    for index in range(1, 5):
        policy = load_policy(place.data(index) / "policy.toml")
        policy.require(terms)
        assert str(policy.signing_key) == f"/run/secrets/client-{index}/client-{index}.key"
        key = load_private_key(place.secret(index) / f"client-{index}.key")
        assert owner_name(key.public_key()) in notary.owners()
    assert "notary-node" in Registry(place.server / "superlink" / "nodes").names().values()
    assert (place.secrets / "notary" / "ca.pem").exists()
    assert place.notary in place.handed_out()
    assert any("may be counted" in sentence for sentence in told)


def test_a_second_setup_leaves_the_notary_and_what_it_revoked_alone(masked):
    place, _ = masked
    notary = NotaryFolder(place.notary / "notary")
    notary.registry.revoke(place.secret(2) / "client-2.pub")
    before = contents(place)
    assert set_up(MASKED, place) == []
    assert contents(place) == before
    assert "client-2" not in notary.registry.keys()  # noqa: SIM118 - a registry is no mapping


def test_a_setup_that_was_cut_short_goes_on_with_the_same_notary(masked):
    place, _ = masked
    notary = NotaryFolder(place.notary / "notary").public_key
    (place.server / "settings.toml").unlink()
    set_up(MASKED, place)
    assert load_settings(place.server / "settings.toml").terms.notaries == (notary,)


@pytest.mark.parametrize("lost", ["notary.key", "record.db"])
def test_a_cluster_whose_notary_is_gone_is_not_started(masked, lost):
    place, _ = masked
    path = place.notary / "notary" / lost
    aside = path.rename(path.with_suffix(".aside"))
    try:
        with pytest.raises(ValueError, match=r"The notary is gone|There is no record"):
            set_up(MASKED, place)
    finally:
        aside.rename(path)
