"""The manifests for Kubernetes: schemas, who may do what, and that they say what compose says."""

import math
import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from coinflower.accounting.composition.compose import epsilon_after
from coinflower.deploy.containers.compose_setup import USER
from coinflower.deploy.gateway.config import CONTAINER_PORT
from coinflower.deploy.keys import keys
from coinflower.protocol.policy import load_policy
from coinflower.server.settings import load_settings
from tests.support.documents import parsed

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "kubernetes"
PARTS = ("server", "client", "client-volumes", "notary", "notary-volumes")
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
MASKED = yaml.safe_load((ROOT / "docker-compose.masked.yml").read_text())["services"]
# Claims for one pod at a time are for everybody since the first of these.
VERSIONS = ("1.29.0", kubernetes_validate.latest_version())


def load(path):
    return list(yaml.safe_load_all(path.read_text()))


KUSTOMIZATIONS = {part: load(FOLDER / part / "kustomization.yaml")[0] for part in PARTS}
OBJECTS = {
    (part, one["kind"], one["metadata"]["name"]): one
    for part in PARTS
    for name in KUSTOMIZATIONS[part]["resources"]
    for one in load(FOLDER / part / name)
}
SERVER = OBJECTS["server", "StatefulSet", "server"]
CLIENT = OBJECTS["client", "StatefulSet", "client"]
PODS = {
    name: one["spec"]["template"]["spec"]
    for (_, kind, name), one in OBJECTS.items()
    if kind in ("StatefulSet", "Job")
}
CONTAINERS = {
    f"{pod}/{one['name']}": one
    for pod, spec in PODS.items()
    for one in (*spec.get("initContainers", ()), *spec["containers"])
}
PROGRAMS = ("server/server", "client/client", "notary/notary")
LASTING = {name: CONTAINERS[name] for name in (*PROGRAMS, "server/gateway")}


def options(words):
    """Return the options of a command by name."""
    pairs = (word.partition("=") for word in words if word.startswith("--"))
    return {name: value for name, _, value in pairs}


def validate(one):
    for version in VERSIONS:
        kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize("key", OBJECTS, ids=" ".join)
def test_every_object_keeps_to_the_schema_of_the_oldest_and_the_newest_version(key):
    validate(OBJECTS[key])


def test_an_object_that_does_not_keep_to_the_schema_would_be_found():
    wrong = {**SERVER, "spec": {**SERVER["spec"], "replica": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(wrong)


@pytest.mark.parametrize("pod", PODS)
def test_a_pod_is_nobody_in_particular_and_has_no_token(pod):
    assert PODS[pod]["automountServiceAccountToken"] is False
    assert PODS[pod]["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        # Else every start would open all files of a volume, such as the ledger, to the group.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & PODS[pod].keys()


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_may_do_no_more_than_it_must(name):
    assert CONTAINERS[name]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "memory" in CONTAINERS[name]["resources"]["limits"]
    assert CONTAINERS[name]["image"] in ("coinflower", "coinflower-gateway")


@pytest.mark.parametrize("pod", PODS)
def test_volumes_are_there_and_those_in_memory_have_an_end(pod):
    spec = PODS[pod]
    templates = SERVER["spec"]["volumeClaimTemplates"] if pod == "server" else []
    known = {one["name"] for one in spec["volumes"]}
    known |= {one["metadata"]["name"] for one in templates}
    used = {
        mount["name"]
        for one in (*spec.get("initContainers", ()), *spec["containers"])
        for mount in one["volumeMounts"]
    }
    assert used == known
    for volume in spec["volumes"]:
        if "emptyDir" in volume:
            assert volume["emptyDir"]["medium"] == "Memory"
            assert volume["emptyDir"]["sizeLimit"]


def test_the_namespaces_refuse_pods_that_may_do_more():
    names = [one for (_, kind, _), one in OBJECTS.items() if kind == "Namespace"]
    assert {one["metadata"]["name"] for one in names} == {
        KUSTOMIZATIONS[part]["namespace"] for part in PARTS
    }
    for one in names:
        assert one["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize(
    "name", [*PROGRAMS, "create-ledger/create-ledger", "create-notary/create-notary"]
)
def test_the_program_understands_its_arguments(name):
    assert parsed(" ".join(CONTAINERS[name]["args"]))


def test_the_server_is_run_as_compose_runs_it_but_for_other_pods_out_of_reach():
    ours, theirs = CONTAINERS["server/server"]["args"], COMPOSE["server"]["command"]
    assert ours[:2] == theirs[:2]
    assert options(ours) == {
        **options(theirs),
        "--host": "127.0.0.1",
        "--health-host": "0.0.0.0",  # probes come from outside of the pod
    }
    assert options(theirs)["--host"] == "0.0.0.0"


def test_a_client_is_run_as_compose_runs_it():
    ours, theirs = CONTAINERS["client/client"]["args"], COMPOSE["client-1"]["command"]
    assert ours[0] == theirs[0]
    assert options(ours) == {
        **options(theirs),
        "--superlink": "$(SUPERLINK)",
        "--root-certificates": "/run/secrets/client/ca.pem",
        "--private-key": "/run/secrets/client/client.key",
        "--health-host": "0.0.0.0",
    }


def test_a_notary_is_run_as_compose_runs_it():
    ours, theirs = CONTAINERS["notary/notary"]["args"], MASKED["notary"]["command"]
    assert ours[:2] == theirs[:2]
    assert options(ours) == {
        **options(theirs),
        "--folder": "/notary/notary",
        "--superlink": "$(SUPERLINK)",
        "--root-certificates": "/etc/coinflower/ca.pem",
        "--health-host": "0.0.0.0",
    }


@pytest.mark.parametrize("part", ["client", "notary"])
def test_the_address_of_the_server_is_stated_where_it_is_read(part):
    (source,) = CONTAINERS[f"{part}/{part}"]["envFrom"]
    (generated,) = (
        one
        for one in KUSTOMIZATIONS[part]["configMapGenerator"]
        if one["name"] == source["configMapRef"]["name"]
    )
    (literal,) = generated["literals"]
    name, _, address = literal.partition("=")
    assert name == "SUPERLINK"
    assert address.endswith(f":{CONTAINER_PORT}")


@pytest.mark.parametrize("name", PROGRAMS)
def test_probes_ask_the_health_port_and_only_a_dead_process_is_restarted(name):
    container = LASTING[name]
    port = int(options(container["args"])["--health-port"])
    assert container["readinessProbe"]["grpc"] == {"port": port}
    assert container["livenessProbe"]["grpc"] == {"port": port, "service": "alive"}
    assert container["startupProbe"]["grpc"] == {"port": port, "service": "alive"}
    started = container["startupProbe"]
    compose = COMPOSE["server"]["healthcheck"]["start_period"]
    assert compose == f"{started['periodSeconds'] * started['failureThreshold']}s"


def test_the_gateway_is_asked_for_its_health_on_the_port_that_it_serves():
    gateway = LASTING["server/gateway"]
    assert gateway["ports"] == [{"name": "fleet", "containerPort": CONTAINER_PORT}]
    assert gateway["readinessProbe"]["httpGet"] == {
        "path": "/health",
        "port": CONTAINER_PORT,
        "scheme": "HTTPS",
    }
    assert gateway["livenessProbe"]["tcpSocket"] == {"port": CONTAINER_PORT}


def test_services_lead_to_ports_of_the_server_and_only_the_gateway_is_published():
    services = {name: one for (_, kind, name), one in OBJECTS.items() if kind == "Service"}
    assert set(services) == {"gateway", "metrics"}
    labels = SERVER["spec"]["template"]["metadata"]["labels"]
    ports = {
        port["name"]: port["containerPort"]
        for one in PODS["server"]["containers"]
        for port in one["ports"]
    }
    for service in services.values():
        assert service["spec"]["selector"] == labels
        (port,) = service["spec"]["ports"]
        assert port["port"] == ports[port["targetPort"]]
    assert services["gateway"]["spec"]["type"] == "LoadBalancer"
    assert "type" not in services["metrics"]["spec"]
    assert str(ports["metrics"]) == options(COMPOSE["server"]["command"])["--metrics-port"]


@pytest.mark.parametrize("part", ["client", "notary"])
def test_nobody_comes_to_a_node_and_it_goes_to_names_and_the_server_only(part):
    policy = OBJECTS[part, "NetworkPolicy", part]["spec"]
    node = OBJECTS[part, "StatefulSet", part]
    assert policy["podSelector"]["matchLabels"] == node["spec"]["selector"]["matchLabels"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["ingress"] == []
    assert {port["port"] for rule in policy["egress"] for port in rule["ports"]} == {
        53,
        CONTAINER_PORT,
    }


def test_to_a_server_come_clients_and_prometheus_and_nothing_goes_out():
    policy = OBJECTS["server", "NetworkPolicy", "server"]["spec"]
    assert policy["podSelector"]["matchLabels"] == SERVER["spec"]["selector"]["matchLabels"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["egress"] == []
    everybody, watchers = policy["ingress"]
    assert everybody == {"ports": [{"port": CONTAINER_PORT, "protocol": "TCP"}]}
    assert [port["port"] for port in watchers["ports"]] == [9101]
    assert watchers["from"]


@pytest.mark.parametrize(("part", "kept"), [("client", "ledger"), ("notary", "notary")])
def test_what_was_spent_or_opened_is_one_pods_and_outlives_it(part, kept):
    node = OBJECTS[part, "StatefulSet", part]
    assert node["spec"]["replicas"] == SERVER["spec"]["replicas"] == 1
    claim = OBJECTS[f"{part}-volumes", "PersistentVolumeClaim", kept]
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    assert "volumeClaimTemplates" not in node["spec"]
    for pod in (part, f"create-{kept}"):
        (volume,) = (one for one in PODS[pod]["volumes"] if one["name"] == kept)
        assert volume["persistentVolumeClaim"] == {"claimName": kept}


def test_no_client_makes_a_ledger_and_no_notary_its_record():
    """One that finds none must say so: an empty one would forget what was spent, or opened."""
    makers = [name for name, one in CONTAINERS.items() if "create" in one.get("args", ())]
    assert makers == ["create-ledger/create-ledger", "create-notary/create-notary"]
    for part, kept in (("client", "ledger"), ("notary", "notary")):
        assert PODS[f"create-{kept}"]["restartPolicy"] == "Never"
        assert OBJECTS[f"{part}-volumes", "Job", f"create-{kept}"]["spec"]["backoffLimit"] == 0


def test_data_is_only_read():
    mounts = {mount["name"]: mount for mount in LASTING["client/client"]["volumeMounts"]}
    assert mounts["data"]["readOnly"] is True
    assert mounts["policy"]["readOnly"] is True


@pytest.mark.parametrize("name", PROGRAMS)
def test_pods_are_given_longer_to_end_than_programs_drain(name):
    drain = parsed(" ".join(LASTING[name]["args"]))["drain_seconds"]
    seconds = PODS[name.partition("/")[0]]["terminationGracePeriodSeconds"]
    assert seconds > 1.5 * drain
    if name == "server/server":
        hook = LASTING["server/gateway"]["lifecycle"]["preStop"]["exec"]["command"]
        assert hook[0] == "sleep"
        assert drain < int(hook[1]) < seconds


def test_the_files_can_be_used_together():
    settings = load_settings(FOLDER / "server" / "settings.toml")
    policy = load_policy(FOLDER / "client" / "policy.toml")
    policy.require(settings.terms)
    cost = settings.terms.round_cost(policy.declared_size)
    spent = epsilon_after([(cost, settings.terms.rounds)], policy.budget.delta)
    assert spent <= policy.budget.epsilon < math.inf
    state = next(
        mount["mountPath"]
        for mount in LASTING["server/server"]["volumeMounts"]
        if mount["name"] == "state"
    )
    assert settings.state.is_relative_to(state)
    ledger = CONTAINERS["create-ledger/create-ledger"]["args"]
    assert Path(ledger[2]) == policy.ledger
    assert ledger[-1] == policy.data_set


def test_the_authoritys_key_is_in_no_secret():
    for part in ("server", "client"):
        (secret,) = KUSTOMIZATIONS[part]["secretGenerator"]
        assert not any("ca.key" in file for file in secret["files"])


@pytest.fixture
def copied(tmp_path):
    """Return a copy of the folder, with the keys that the guide lets people make."""
    folder = shutil.copytree(FOLDER, tmp_path / "kubernetes")
    keys.make_authority(folder / "server" / "keys")
    keys.make_server_certificate(folder / "server" / "keys", ["fl.example.org"])
    keys.make_node_key(folder / "client" / "keys", "ward-7")
    for part in ("client", "notary"):
        shutil.copy(folder / "server" / "keys" / "ca.pem", folder / part / "ca.pem")
    return folder


@pytest.mark.usefixtures("kubectl")
@pytest.mark.parametrize("part", PARTS)
def test_kubectl_renders_what_keeps_to_the_schema_and_belongs_together(copied, part):
    done = subprocess.run(
        ["kubectl", "kustomize", copied / part], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rendered = list(yaml.safe_load_all(done.stdout))
    for one in rendered:
        validate(one)
        if one["kind"] != "Namespace":
            assert one["metadata"]["namespace"] == KUSTOMIZATIONS[part]["namespace"]
    names = {one["metadata"]["name"] for one in rendered if one["kind"] in ("ConfigMap", "Secret")}
    (pod,) = (
        one["spec"]["template"]["spec"] for one in rendered if one["kind"] in ("Job", "StatefulSet")
    )
    named = {
        source.get("name") or source["secretName"]
        for volume in pod["volumes"]
        for kind, source in volume.items()
        if kind in ("configMap", "secret")
    }
    sources = (source for one in pod["containers"] for source in one.get("envFrom", ()))
    assert named | {source["configMapRef"]["name"] for source in sources} == names
    for one in (*pod.get("initContainers", ()), *pod["containers"]):
        assert one["image"].startswith("registry.example.org/coinflower")
