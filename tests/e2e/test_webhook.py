"""The validating webhook, called by a real API server: refusals at apply, warnings, rotation, and life without it."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from dsv4_operator.api.v1alpha1.deployment import parse_deployment
from dsv4_operator.engine.images import ImageDefaults, resolve_images
from dsv4_operator.policy import Action, Finding, evaluate, refusals
from localcluster import LocalCluster, images, tools
from localcluster.api import ApiError
from localcluster.ports import free_port
from localcluster.waiting import wait_for
from operator_process import IMAGES, ROOT, OperatorProcess
from world import World, deployment

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
WEBHOOK = "policy.serving.dsv4.dev"
DEFAULTS = ImageDefaults(IMAGES["engine"], IMAGES["canary"], IMAGES["router"])

RISKY: dict[str, Any] = {
    "hiCache": {"enabled": True},
    "indexK": {"dtype": "FP4"},
    "engine": {"speculative": {"algorithm": "EAGLE", "numSteps": 3, "eagleTopk": 1, "numDraftTokens": 4}},
}
"""Refused, and a user may take the risk."""
REFUSED: dict[str, Any] = {
    **RISKY,
    "prefill": {"extraArgs": ["--mem-fraction-stat", "0.9"]},
}
"""Refused for several reasons at once; the schema has nothing against it."""

Start = Callable[..., OperatorProcess]


def findings(obj: dict[str, Any]) -> list[Finding]:
    """What policy says, asked directly."""
    raw = {**obj, "metadata": {"namespace": "any", **obj["metadata"]}}
    spec = parse_deployment(raw).spec
    return evaluate(spec, resolve_images(spec, DEFAULTS))


def helm_template(namespace: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    chart = ROOT / "charts" / "dsv4-operator"
    command = [str(tools.helm()), "template", "dsv4-operator", str(chart), "--namespace", namespace, "--values", "-"]
    done = subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


@dataclass(frozen=True)
class Hook:
    """The chart's ValidatingWebhookConfiguration, for one namespace, calling processes of this machine."""

    world: World
    name: str
    values: dict[str, Any]

    def call(self, port: int) -> None:
        """Have the API server call this port from now on."""
        rendered = helm_template("x", {"image": {"repository": "x"}, "webhook": self.values})
        (obj,) = [one for one in rendered if one["kind"] == "ValidatingWebhookConfiguration"]
        obj["metadata"] = {"name": self.name}
        (webhook,) = obj["webhooks"]
        webhook["clientConfig"] = {"url": f"https://127.0.0.1:{port}/validate"}
        webhook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": self.world.namespace}}
        self.world.cluster.api.apply(f"{CONFIGURATIONS}/{self.name}", obj)

    def arguments(self, port: int, *more: str) -> list[str]:
        """Of an operator that serves it."""
        return [
            f"--namespaces={self.world.namespace}",
            f"--lease-namespace={self.world.namespace}",
            "--webhook",
            "--webhook-hosts=127.0.0.1",
            f"--webhook-listen-port={port}",
            f"--webhook-configuration={self.name}",
            *more,
        ]

    def wait_refusing(self) -> None:
        """Until the API server calls the webhook and believes it."""
        self.world.wait("the webhook to refuse", partial(refused_by_webhook, self.world, REFUSED), timeout=30)


def refused_by_webhook(world: World, spec: dict[str, Any]) -> str | None:
    """What the webhook says to a dry run; None when the object would be stored."""
    try:
        path = f"{world.path('').rstrip('/')}?dryRun=All"
        world.cluster.api.create(path, deployment("probe", **spec))
    except ApiError as error:
        return str(error) if f'admission webhook "{WEBHOOK}" denied the request' in str(error) else None
    return None


@pytest.fixture
def make_hook(api_world: World) -> Iterator[Callable[..., Hook]]:
    made: list[Hook] = []

    def make(**values: Any) -> Hook:
        made.append(Hook(api_world, f"e2e.{api_world.namespace}", values))
        return made[-1]

    yield make
    for hook in made:
        api_world.cluster.api.delete(f"{CONFIGURATIONS}/{hook.name}")


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def hook(make_hook: Callable[..., Hook], start_operator: Start, api_world: World, port: int) -> Hook:
    """A webhook that is at work, served by a standalone operator."""
    made = make_hook()
    made.call(port)
    start_operator(api_world.cluster, *made.arguments(port, "--no-lease"))
    made.wait_refusing()
    return made


def apply(world: World, obj: dict[str, Any], *more: str) -> subprocess.CompletedProcess[str]:
    """`kubectl apply`, as users do it."""
    command = [str(tools.kubectl()), f"--kubeconfig={world.cluster.kubeconfig}", "-n", world.namespace, "apply"]
    return subprocess.run(
        [*command, "-f", "-", *more], input=json.dumps(obj), capture_output=True, text=True, check=False
    )


@pytest.mark.cluster
def test_a_refused_spec_is_rejected_at_apply_with_all_findings(api_world: World, hook: Hook) -> None:
    obj = deployment("bad", **REFUSED)
    wanted = refusals(findings(obj))
    assert len({finding.rule for finding in wanted}) >= 2
    done = apply(api_world, obj)
    assert done.returncode != 0
    for finding in wanted:
        assert f"{finding.path}: " in done.stderr
        assert f"[{finding.rule}]" in done.stderr
        assert " ".join(finding.message.split()) in done.stderr
    with pytest.raises(ApiError) as refused:
        api_world.create(obj)
    assert refused.value.status == 422
    assert all(f"[{finding.rule}]" in str(refused.value) for finding in wanted)
    assert api_world.cluster.api.get_or_none(api_world.path("bad")) is None


@pytest.mark.cluster
def test_what_does_not_refuse_is_a_warning_of_kubectl(api_world: World, hook: Hook) -> None:
    obj = deployment("pair", canary={"enabled": False}, rollout={"autoRollback": False})
    wanted = [finding for finding in findings(obj) if finding.action is not Action.REFUSE]
    assert {finding.action for finding in wanted} == {Action.SET, Action.WARN}
    done = apply(api_world, obj)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("Warning: ")]
    for finding in wanted:
        (line,) = [one for one in lines if f"[{finding.rule}]" in one and f"{finding.path}: " in one]
        assert len(line) <= len("Warning: ") + 256


@pytest.mark.cluster
def test_a_refused_update_is_rejected_and_nothing_else_changes(api_world: World, hook: Hook) -> None:
    api_world.create(deployment("pair"))
    api_world.wait_ready("pair")
    before = {key: obj["metadata"]["uid"] for key, obj in api_world.children("pair").items()}
    generation = api_world.get("pair")["metadata"]["generation"]
    with pytest.raises(ApiError, match="denied the request"):
        api_world.patch("pair", REFUSED)
    after = api_world.get("pair")
    assert after["metadata"]["generation"] == generation
    assert api_world.condition("pair", "ConfigValid")["status"] == "True"
    assert {key: obj["metadata"]["uid"] for key, obj in api_world.children("pair").items()} == before
    api_world.patch("pair", {"decode": {"memory": "8Gi"}})  # the webhook is no obstacle to good changes
    api_world.wait_ready("pair")


@pytest.mark.cluster
def test_without_an_answer_the_object_is_stored_and_reconciliation_refuses(
    api_world: World, make_hook: Callable[..., Hook], start_operator: Start, port: int
) -> None:
    hook = make_hook()
    hook.call(port)
    api_world.create(deployment("bad", **REFUSED))  # nobody listens there, and failurePolicy is Ignore
    start_operator(api_world.cluster, *hook.arguments(port, "--no-lease"))
    config = api_world.wait("the finding", lambda: (c := api_world.condition("bad", "ConfigValid")) and c)
    assert (config["status"], config["reason"]) == ("False", "RefusedByPolicy")
    listed = {(f["rule"], f["path"]) for f in api_world.get("bad")["status"]["findings"] if f["action"] == "Refuse"}
    assert listed == {(f.rule, f.path) for f in refusals(findings(deployment("bad", **REFUSED)))}
    assert api_world.children("bad") == {}

    # The webhook is at work now, and the stored object's metadata is not its business.
    hook.wait_refusing()
    api_world.cluster.api.merge(api_world.path("bad"), {"metadata": {"labels": {"owner": "me"}}})
    api_world.cluster.api.merge(api_world.path("bad"), {"metadata": {"finalizers": ["example.com/mine"]}})
    with pytest.raises(ApiError, match="denied the request"):
        api_world.patch("bad", {"prefill": {"memory": "8Gi"}})
    api_world.delete("bad")
    api_world.cluster.api.merge(api_world.path("bad"), {"metadata": {"finalizers": []}})
    api_world.wait("the object to go", lambda: api_world.cluster.api.get_or_none(api_world.path("bad")) is None, 30)


@pytest.mark.cluster
def test_with_the_webhook_off_reconciliation_refuses(api_world: World, start_operator: Start) -> None:
    start_operator(api_world.cluster, "--no-lease", f"--namespaces={api_world.namespace}")
    api_world.create(deployment("bad", **REFUSED))
    config = api_world.wait("the finding", lambda: (c := api_world.condition("bad", "ConfigValid")) and c)
    assert (config["status"], config["reason"]) == ("False", "RefusedByPolicy")
    assert api_world.children("bad") == {}


@pytest.mark.cluster
def test_failure_policy_fail_stops_specs_alone(
    api_world: World, make_hook: Callable[..., Hook], start_operator: Start, port: int
) -> None:
    """With nobody there and `Fail`: no new spec, but labels, finalizers, status, scale and deletion go on."""
    api_world.create(deployment("pair"))
    start_operator(api_world.cluster, "--no-lease", f"--namespaces={api_world.namespace}")
    api_world.wait_ready("pair")
    make_hook(failurePolicy="Fail").call(port)

    def stopped() -> bool:
        try:
            api_world.create(deployment(f"new-{free_port()}"))
        except ApiError as error:
            return "failed calling webhook" in str(error)
        return False

    api_world.wait("specs to be stopped", stopped, timeout=30)
    api_world.cluster.api.merge(api_world.path("pair"), {"metadata": {"finalizers": ["example.com/mine"]}})
    api_world.cluster.kubectl("-n", api_world.namespace, "scale", "dsv4/pair", "--replicas=2")
    api_world.wait("the scale to be observed", lambda: api_world.get("pair")["status"]["replicas"] == 2)
    api_world.delete("pair")
    api_world.cluster.api.merge(api_world.path("pair"), {"metadata": {"finalizers": []}})
    api_world.wait("the object to go", lambda: api_world.cluster.api.get_or_none(api_world.path("pair")) is None, 30)


@pytest.mark.cluster
def test_policy_allow_lets_it_pass_and_is_counted(
    api_world: World, make_hook: Callable[..., Hook], start_operator: Start, port: int
) -> None:
    hook = make_hook()
    hook.call(port)
    operator = start_operator(api_world.cluster, *hook.arguments(port, "--no-lease"))
    hook.wait_refusing()
    assert refused_by_webhook(api_world, RISKY)
    rules = {finding.rule for finding in refusals(findings(deployment("risky", **RISKY)))}
    obj = deployment("risky", **RISKY, policy={"allow": [{"rule": r, "reason": "proved here"} for r in rules]})
    done = apply(api_world, obj)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("allowed (proved here)") == len(rules)
    api_world.wait_ready("risky")
    listed = {f["rule"]: f for f in api_world.get("risky")["status"]["findings"]}
    for rule in rules:
        assert listed[rule]["action"] == "Warn"
        assert listed[rule]["message"].startswith("allowed (proved here)")
        labels = f'name="risky",namespace="{api_world.namespace}",rule="{rule}"'
        assert operator.metric(f"dsv4_operator_policy_allowed{{{labels}}}") == 1.0
    counted = [
        line for line in operator.get("/metrics").splitlines() if line.startswith("dsv4_operator_policy_allowed{")
    ]
    assert len(counted) == len(rules)
    assert (operator.metric('dsv4_operator_webhook_reviews_total{result="refused"}') or 0) >= 2
    assert operator.metric('dsv4_operator_webhook_reviews_total{result="allowed"}') == 1.0

    api_world.patch("risky", {"hiCache": {"enabled": False}, "policy": None})
    gone = f'dsv4_operator_policy_allowed{{name="risky",namespace="{api_world.namespace}",rule="{rules.pop()}"}}'
    api_world.wait("the series to go", lambda: operator.metric(gone) is None, timeout=30)


@pytest.mark.cluster
def test_a_standby_serves_the_webhook(
    api_world: World, make_hook: Callable[..., Hook], start_operator: Start, port: int
) -> None:
    hook, other = make_hook(), free_port()
    hook.call(port)
    first = start_operator(api_world.cluster, *hook.arguments(port))
    api_world.wait("the first to lead", lambda: first.metric("dsv4_operator_leader") == 1.0)
    second = start_operator(api_world.cluster, *hook.arguments(other))
    api_world.wait("the standby to be ready", lambda: second.get("/readyz") == "ok (standby)\n")
    hook.call(other)
    hook.wait_refusing()
    assert (second.metric('dsv4_operator_webhook_reviews_total{result="refused"}') or 0) >= 1
    assert served(port).issuer == served(other).issuer, "both serve from one Secret"


def verify(port: int, bundle: str) -> None:
    """Connect as a new client that trusts this bundle alone. Raises ssl.SSLError, an error of the test itself."""
    trusted = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
            trusted.wrap_socket(plain, server_hostname="127.0.0.1"),
        ):
            pass
    except ssl.SSLError as error:
        raise AssertionError(f"a new connection is not trusted: {error}") from error


def served(port: int) -> x509.Certificate:
    """The certificate that new connections see."""
    return x509.load_pem_x509_certificate(ssl.get_server_certificate(("127.0.0.1", port)).encode())


@pytest.mark.cluster
def test_certificates_rotate_without_a_gap(
    api_world: World, make_hook: Callable[..., Hook], start_operator: Start, port: int
) -> None:
    """Certificates of twelve seconds from authorities of 48: not one object slips through while both change."""
    hook = make_hook()
    hook.call(port)
    operator = start_operator(
        api_world.cluster, *hook.arguments(port, "--no-lease", "--webhook-certificate-seconds=12")
    )
    hook.wait_refusing()
    serials, issuers, bundles, asked = set(), set(), set(), 0

    def rotated() -> bool:
        nonlocal asked
        live = api_world.cluster.api.get(f"{CONFIGURATIONS}/{hook.name}")
        bundle = live["webhooks"][0]["clientConfig"]["caBundle"]
        bundles.add(bundle)
        verify(port, bundle)  # the API server keeps connections, and verifies new ones alone
        certificate = served(port)
        serials.add(certificate.serial_number)
        issuers.add(certificate.issuer)
        assert refused_by_webhook(api_world, REFUSED), f"slipped through after {asked} refusals"
        asked += 1
        return len(issuers) >= 3 and len(serials) >= 6

    api_world.wait("two new authorities", rotated, timeout=180)
    assert len(bundles) >= 3
    assert operator.starts == 1
    assert "Traceback" not in operator.log


@pytest.mark.cluster
@pytest.mark.parametrize("harm", ["deleted", "garbled"])
def test_a_lost_secret_and_a_lost_bundle_come_back(
    api_world: World, make_hook: Callable[..., Hook], start_operator: Start, port: int, harm: str
) -> None:
    hook = make_hook()
    hook.call(port)
    start_operator(api_world.cluster, *hook.arguments(port, "--no-lease", "--webhook-certificate-seconds=60"))
    hook.wait_refusing()
    before = served(port)
    path = api_world.child_path("Secret", "dsv4-operator-webhook")
    if harm == "deleted":
        api_world.cluster.api.delete(path)
    else:
        api_world.cluster.api.merge(path, {"data": {"ca.key": "Z2FyYmxlZA=="}})
    hook.call(port)  # as an administrator who applies the manifest again
    wrong = [{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": served_pem(port)}]
    api_world.cluster.kubectl(
        "patch", "validatingwebhookconfiguration", hook.name, "--type=json", "-p", json.dumps(wrong)
    )
    api_world.wait("another authority", lambda: served(port).issuer != before.issuer, timeout=30)
    hook.wait_refusing()


def served_pem(port: int) -> str:
    """A certificate that trusts nobody here, base64."""
    return base64.b64encode(ssl.get_server_certificate(("127.0.0.1", port)).encode()).decode()


@pytest.mark.cluster
def test_a_stranger_s_secret_is_left_alone(
    api_world: World, make_hook: Callable[..., Hook], start_operator: Start, port: int
) -> None:
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "dsv4-operator-webhook"},
        "stringData": {"password": "x"},
    }
    made = api_world.cluster.api.create(f"/api/v1/namespaces/{api_world.namespace}/secrets", secret)
    hook = make_hook()
    hook.call(port)
    operator = start_operator(api_world.cluster, *hook.arguments(port, "--no-lease"))
    api_world.create(deployment("pair"))
    api_world.wait_ready("pair")  # the operator works all the same
    assert "exists and is not ours" in operator.log
    api_world.wait("readiness without a webhook", lambda: operator.get("/readyz").startswith("ok"), timeout=60)
    after = api_world.child("Secret", "dsv4-operator-webhook")
    assert after is not None
    assert after["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


# -- in the cluster, through a Service


@pytest.fixture
def installed(
    serving_cluster: LocalCluster, make_namespace: Callable[[LocalCluster], str], tmp_path: Path
) -> Iterator[str]:
    """The chart, installed by helm on the real node with its defaults but for images; the release's namespace."""
    images.load(serving_cluster, images.PRODUCT_IMAGES["operator"].build())
    namespace = make_namespace(serving_cluster)
    repository, _, tag = images.PRODUCT_IMAGES["operator"].tag.rpartition(":")
    values = {
        "fullnameOverride": f"op-{namespace[-6:]}",
        "replicas": 2,
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "defaults": {f"{name}Image": image for name, image in IMAGES.items()},
        "crds": {"enabled": False},
        "rbac": {"aggregateClusterRoles": False},
    }
    helm = [str(tools.helm()), f"--kubeconfig={serving_cluster.kubeconfig}", "--namespace", namespace]
    chart = str(ROOT / "charts" / "dsv4-operator")
    done = subprocess.run(
        [*helm, "install", "dsv4-operator", chart, "--values", "-", "--wait", "--timeout", "180s"],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    try:
        assert done.returncode == 0, done.stdout + done.stderr + serving_cluster.kubectl("-n", namespace, "get", "pods")
        yield namespace
    finally:
        subprocess.run(
            [*helm, "uninstall", "dsv4-operator", "--wait"],
            check=False,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        )


@pytest.mark.node
def test_the_installed_chart_refuses_at_apply(serving_world: World, installed: str) -> None:
    world = serving_world
    assert wait_for("a refusal", partial(refused_by_webhook, world, REFUSED), 30)
    done = apply(world, deployment("bad", **REFUSED))
    assert done.returncode != 0
    for finding in refusals(findings(deployment("bad", **REFUSED))):
        assert f"[{finding.rule}]" in done.stderr
    # Any replica answers: also when the one that leads is gone.
    world.cluster.kubectl(
        "-n",
        installed,
        "delete",
        "pod",
        "-l",
        "app.kubernetes.io/name=dsv4-operator",
        "--field-selector=status.phase=Running",
    )
    world.wait("a refusal by new pods", partial(refused_by_webhook, world, REFUSED), timeout=120)
    world.create(deployment("pair"))
    world.wait_ready("pair")
