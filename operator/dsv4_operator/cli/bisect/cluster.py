"""Runs arms in a cluster: DSV4Deployments of their own, or edits of one that a person has marked for testing.

The given object is read from a file and never touched: no request names it but the one that looks for its namespace.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from dsv4_canary.soak.verdict import EXIT_INTERRUPTED
from dsv4_operator.api.constants import (
    CONTAINER_ENGINE,
    ENGINE_PORT,
    ENGINE_ROLES,
    KIND,
    LABEL_DEPLOYMENT,
    LABEL_ROLE,
    Role,
)
from dsv4_operator.cli.bisect import objects
from dsv4_operator.cli.bisect.backup import Backup
from dsv4_operator.cli.bisect.factors import Setting
from dsv4_operator.cli.bisect.plan import Arm
from dsv4_operator.cli.bisect.runner import ArmError, Load, TeardownError
from dsv4_operator.cli.errors import UnreadableError
from dsv4_operator.cli.judge import Judgement, finding_line, judge_object
from dsv4_operator.cli.kubectl import AlreadyThereError, ClusterError, Kubectl
from dsv4_operator.cli.render import context
from dsv4_operator.cli.soak_cluster import run_job
from dsv4_operator.desired import soak_job
from dsv4_operator.desired.soak_job import LABEL_RUN, SoakJob
from dsv4_operator.engine.images import ImageDefaults
from dsv4_operator.policy import refusals

_RESOURCE: Final = "dsv4deployments.serving.dsv4.dev"
_ENGINES: Final = f"{LABEL_ROLE} in ({','.join(role.value for role in ENGINE_ROLES)})"
"""Engines that have an HTTP endpoint: pods of an engine's further nodes carry no role."""
_POLL: Final = 2.0
GONE_SECONDS: Final = 300.0
"""Longest wait until the pods of an arm have gone and their GPUs are free."""


class _Serving:
    """An arm that serves."""

    def __init__(self, runner: ClusterRunner, endpoint: str, *, with_key: bool) -> None:
        self._runner = runner
        self._endpoint = endpoint
        self._with_key = with_key

    def soak(self, load: Load) -> dict[str, Any]:
        """One batch as a Job."""
        return self._runner.soak(self._endpoint, load, with_key=self._with_key)


class ClusterRunner:
    """Arms in one namespace. `raw`: the given object as it was read; `backup` keeps a test object's own spec while it
    is edited."""

    def __init__(
        self,
        kubectl: Kubectl,
        raw: Mapping[str, Any],
        given: Setting,
        run: str,
        *,
        images: ImageDefaults,
        canary_image: str,
        start_timeout: float,
        test_deployment: str | None = None,
        backup: Backup | None = None,
        say: Callable[[str], None] = lambda _line: None,
        quiet: bool = False,
    ) -> None:
        self._kubectl = kubectl
        self._raw = raw
        self._name = str(raw["metadata"]["name"])
        self._given = given
        self._run = run
        self._images = images
        self._canary_image = canary_image
        self._start_timeout = start_timeout
        self._test = test_deployment
        self._backup = backup
        self._say = say
        self._quiet = quiet
        self._before: dict[str, Any] | None = None

    def __enter__(self) -> ClusterRunner:
        """Check that nothing is in the way. Raises UnreadableError, ClusterError."""
        # A server that stood alone is a Deployment.
        left = self._kubectl.listed(f"{_RESOURCE},deployments", f"{objects.LABEL_BISECT}={self._name}")
        if left:
            names = ", ".join(item["metadata"]["name"] for item in left)
            raise UnreadableError(
                f"{self._name}: arms of another bisection are there ({names}); let it end, or: "
                f"kubectl delete {_RESOURCE},deployments,services -l {objects.LABEL_BISECT}={self._name}"
            )
        if self._test is not None:
            present = self._editable(self._test)["spec"]
            self._before = present if self._backup is None else self._backup.keep(present)
            if self._backup is not None:
                self._say(f"{self._test}: its own spec is kept in {self._backup.path} until it is put back")
        return self

    def __exit__(self, *_: object) -> None:
        if self._test is not None and self._before is not None:
            self._say(f"{self._test}: back to its own spec")
            try:
                self._kubectl.replace_spec(_RESOURCE, self._test, self._before, resource_version=None)
            except ClusterError as error:
                kept = f"; it is in {self._backup.path}" if self._backup is not None else ""
                raise ClusterError(f"{self._test}: its own spec could not be put back: {error}{kept}") from None
            if self._backup is not None:
                self._backup.done()

    def _editable(self, name: str) -> dict[str, Any]:
        """The test object. Raises UnreadableError unless a person has marked it for this."""
        if name == self._name:
            raise UnreadableError(
                f"--test-deployment = {name!r}: is the object under suspicion itself; name another one, made for tests"
            )
        found = self._kubectl.get(_RESOURCE, name)
        if found is None:
            raise UnreadableError(f"--test-deployment = {name!r}: there is no such {KIND}; create it, or leave it out")
        labels = found["metadata"].get("labels") or {}
        if labels.get(objects.LABEL_TESTING) != "true":
            raise UnreadableError(
                f"--test-deployment = {name!r}: carries no label that allows edits, and may serve users; if it does "
                f"not: kubectl label {_RESOURCE} {name} {objects.LABEL_TESTING}=true"
            )
        return found

    @contextmanager
    def open(self, arm: Arm) -> Iterator[_Serving]:
        """Deploy, wait until it serves, tear down. Raises ArmError, TeardownError."""
        try:
            if not arm.setting.pair:
                with self._alone(arm) as endpoint:
                    yield _Serving(self, endpoint, with_key=False)
            elif self._test is not None:
                yield _Serving(self, self._edited(arm, self._test), with_key=self._key() is not None)
            else:
                with self._pair(arm) as endpoint:
                    yield _Serving(self, endpoint, with_key=self._key() is not None)
        except ClusterError as error:
            raise ArmError(str(error)) from None

    def soak(self, endpoint: str, load: Load, *, with_key: bool) -> dict[str, Any]:
        """One batch against a Service of the cluster. Raises ArmError."""
        secret = self._key() if with_key else None
        job = SoakJob(
            name=soak_job.object_name(f"{self._name}-{load.tag}", self._run),
            run=f"{self._run}-{load.tag}"[:63].rstrip("-"),
            tag=load.tag,
            image=self._canary_image,
            arguments=soak_job.arguments({"endpoint": endpoint, "tag": load.tag, **load.values}),
            api_key_secret=secret[0] if secret else None,
            api_key_key=secret[1] if secret else "key",
            pull_secrets=tuple(
                item["name"] for item in (self._raw["spec"].get("engine") or {}).get("imagePullSecrets") or []
            ),
        )
        try:
            result = run_job(self._kubectl, job, quiet=self._quiet)
        except ClusterError as error:
            raise ArmError(str(error)) from None
        report = result.report(load.tag)
        if result.interrupted:
            raise KeyboardInterrupt  # run_job took it to stop the Job; it is the bisection that shall stop
        if result.status == EXIT_INTERRUPTED:
            raise ArmError("the soak was stopped from outside: its pod was deleted or evicted")
        if report is None:
            raise ArmError(f"the soak brought no report (exit status {result.status})")
        return report

    def _key(self) -> tuple[str, str] | None:
        reference = (self._raw["spec"].get("router") or {}).get("apiKeySecretRef")
        return None if reference is None else (reference["name"], reference["key"])

    def _spec(self, arm: Arm) -> tuple[dict[str, Any], Judgement]:
        """The arm's spec and how it is judged. Raises ArmError when policy refuses it."""
        spec = objects.arm_spec(self._raw, self._given, arm.setting)
        name = objects.arm_name(self._name, arm.name)
        obj = objects.pair_object(name, self._name, self._run, spec)
        judgement = judge_object(obj, arm.name, self._images, assume=True)
        refused = refusals(judgement.findings)
        if refused or judgement.deployment is None:
            line = finding_line(refused[0]) if refused else "; ".join(judgement.unreadable)
            raise ArmError(f"refused: {line}")
        return obj, judgement

    @contextmanager
    def _pair(self, arm: Arm) -> Iterator[str]:
        obj, _ = self._spec(arm)
        name = obj["metadata"]["name"]
        try:
            try:
                self._kubectl.create(obj)
            except AlreadyThereError:
                raise ArmError(f"{name}: exists and is none of ours; delete or rename it") from None
            self._wait_ready(name)
            self._check_guard(obj["spec"], f"{LABEL_DEPLOYMENT}={name},{_ENGINES}")
            yield self._url(name)
        finally:
            with self._removing(name, _RESOURCE):
                self._remove_pair(name)

    @contextmanager
    def _removing(self, name: str, kinds: str) -> Iterator[None]:
        """Raises TeardownError for what the cluster refuses."""
        try:
            yield
        except ClusterError as error:
            raise TeardownError(
                f"{name}: could not be removed, and holds its GPUs: {error}; "
                f"kubectl delete {kinds} {name}, then --resume"
            ) from None

    def _remove_pair(self, name: str) -> None:
        """Remove an arm, and only an arm of this run."""
        found = self._kubectl.get(_RESOURCE, name)
        if found is not None and (found["metadata"].get("labels") or {}).get(LABEL_RUN) == self._run:
            self._say(f"{name}: removing")
            self._kubectl.delete(_RESOURCE, name)
            self._wait_gone("pods", f"{LABEL_DEPLOYMENT}={name}")
            self._wait_gone(_RESOURCE, f"{LABEL_RUN}={self._run},{objects.LABEL_BISECT}={self._name}")

    def _edited(self, arm: Arm, name: str) -> str:
        found = self._editable(name)
        obj, _ = self._spec(arm)
        version = found["metadata"]["resourceVersion"]
        self._kubectl.replace_spec(_RESOURCE, name, obj["spec"], resource_version=version)
        self._wait_ready(name)
        self._check_guard(obj["spec"], f"{LABEL_DEPLOYMENT}={name},{_ENGINES}")
        return self._url(name)

    def _check_guard(self, spec: Mapping[str, Any], selector: str) -> None:
        """That engines which need the gated image's plugin have it: without it BF16 is silently FP8, and the arm clean.

        Raises ArmError.
        """
        if not objects.needs_guard(spec):
            return
        index_k = str((spec.get("indexK") or {}).get("dtype") or "FP8")
        pods = [pod for pod in self._kubectl.listed("pods", selector) if "deletionTimestamp" not in pod["metadata"]]
        if not pods:
            raise ArmError(f"no engine pod has the labels {selector}, so nobody can say what runs")
        for pod in pods:
            name, role = pod["metadata"]["name"], (pod["metadata"].get("labels") or {}).get(LABEL_ROLE)
            metrics = self._metrics(name, ENGINE_PORT[Role(role) if role else Role.PREFILL])
            if not objects.shows_guard(metrics, index_k):
                raise ArmError(
                    f"pod {name}: its engine shows no marker of the guard with index-K {index_k}, so it does not run "
                    "what the spec says; use the gated image"
                )

    def _metrics(self, pod: str, port: int) -> str:
        """An engine's metrics: read in its own pod, where no NetworkPolicy is in the way; else through the API server,
        which needs another right. Raises ClusterError."""
        url = f"http://127.0.0.1:{port}/metrics"
        code = f"import urllib.request as r; print(r.urlopen({url!r}, timeout=10).read().decode())"
        try:
            return self._kubectl.execute(pod, CONTAINER_ENGINE, "python3", "-c", code)
        except ClusterError:
            return self._kubectl.raw(f"/api/v1/namespaces/{self._kubectl.namespace()}/pods/{pod}:{port}/proxy/metrics")

    @contextmanager
    def _alone(self, arm: Arm) -> Iterator[str]:
        obj, judgement = self._spec(arm)
        name = obj["metadata"]["name"]
        if judgement.deployment is None or judgement.images is None or not judgement.images.engine:
            raise ArmError("the engine image is not known: give --engine-image")
        if self._test is not None:
            # The test object holds the GPUs.
            idle = {**obj["spec"], "replicas": 0}
            self._kubectl.replace_spec(_RESOURCE, self._test, idle, resource_version=None)
            self._wait_gone("pods", f"{LABEL_DEPLOYMENT}={self._test}")
        run = f"{self._run}-{arm.name}"[:63].rstrip("-")
        try:
            made = objects.alone_objects(context(judgement, judgement.deployment), name, self._name, run)
        except ValueError as error:
            raise ArmError(str(error)) from None
        try:
            for item in made:
                self._kubectl.create(item)
            self._wait("a ready server", lambda: self._available(name, run))
            self._check_guard(obj["spec"], f"{LABEL_RUN}={run}")
            yield self._url(name)
        finally:
            self._say(f"{name}: removing")
            with self._removing(name, "deployments,services"):
                for item in made:
                    held = self._kubectl.get(item["kind"], name)
                    if held is not None and (held["metadata"].get("labels") or {}).get(LABEL_RUN) == run:
                        self._kubectl.delete(item["kind"], name)
                self._wait_gone("pods,deployments,services", f"{LABEL_RUN}={run}")

    def _url(self, name: str) -> str:
        return f"http://{name}.{self._kubectl.namespace()}.svc"

    def _available(self, name: str, run: str) -> str | None:
        status = (self._kubectl.get("deployment", name) or {}).get("status") or {}
        if status.get("availableReplicas"):
            return None
        pods = self._kubectl.listed("pods", f"{LABEL_RUN}={run}")
        return soak_job.held_back(pods, None) or "its pod is starting"

    def _wait_ready(self, name: str) -> None:
        self._wait(f"{name} to be Ready", lambda: self._held_back(name))

    def _held_back(self, name: str) -> str | None:
        """What holds an object back, None when it serves its present spec. Raises ArmError when it never will."""
        found = self._kubectl.get(_RESOURCE, name)
        if found is None:
            raise ArmError(f"{name}: is gone; somebody deleted it")
        status = found.get("status") or {}
        if status.get("observedGeneration") != found["metadata"]["generation"]:
            return "the operator has not looked at it; is it running, and does it watch this namespace?"
        conditions = {item["type"]: item for item in status.get("conditions") or []}
        valid, ready, moving = (conditions.get(kind, {}) for kind in ("ConfigValid", "Ready", "Progressing"))
        if valid.get("status") == "False":
            raise ArmError(f"{name}: refused by the operator: {valid.get('message', '')}")
        if ready.get("status") == "True" and moving.get("status") != "True":
            return None
        return str(ready.get("message") or moving.get("message") or "no reason is known")

    def _wait(self, what: str, held_back: Callable[[], str | None]) -> None:
        deadline, said = time.monotonic() + self._start_timeout, ""
        while (why := held_back()) is not None:
            if why != said:
                self._say(f"waiting for {what}: {why}")
                said = why
            if time.monotonic() >= deadline:
                raise ArmError(f"not ready within {self._start_timeout:.0f} s: {why}")
            time.sleep(_POLL)

    def _wait_gone(self, kinds: str, selector: str) -> None:
        """Wait until objects have gone: pods' GPUs are the next arm's, and a name may be needed again."""
        deadline = time.monotonic() + GONE_SECONDS
        while self._kubectl.listed(kinds, selector):
            if time.monotonic() >= deadline:
                self._say(f"{kinds} with {selector} have not gone within {GONE_SECONDS:.0f} s")
                return
            time.sleep(_POLL)
