"""One pass over one DSV4Deployment: observe, decide, apply, prune, one status write.

The pass is level-triggered: it looks at what is, never at what happened. Decisions are made in policy, desired, plan
and observe; this module fetches what they need and carries out what they say.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from dsv4_operator.api.constants import (
    API_VERSION,
    KIND,
    LABEL_FINGERPRINT,
    LABEL_ROLE,
    STATUS_FIELD_MANAGER,
    Role,
)
from dsv4_operator.api.v1alpha1.conditions import ConditionType, Reason
from dsv4_operator.api.v1alpha1.deployment import DSV4Deployment, InvalidSpecError, parse_deployment
from dsv4_operator.api.v1alpha1.operations import CanarySpec
from dsv4_operator.api.v1alpha1.status import DSV4DeploymentStatus
from dsv4_operator.desired.canary import read_prompt_tokens, settings_name
from dsv4_operator.desired.children import build_generation_children, build_object_children
from dsv4_operator.desired.context import DesiredContext, workers_name
from dsv4_operator.desired.engine_workload import read_fingerprint_inputs
from dsv4_operator.engine.fingerprint import changed_inputs
from dsv4_operator.engine.images import ImageDefaults, resolve_images
from dsv4_operator.engine.releases import KNOWN_RELEASES, release_of
from dsv4_operator.kube.errors import ApiError, ApiUnavailable, Forbidden, Invalid, KindNotInstalled, NotFound
from dsv4_operator.kube.kinds import DSV4_DEPLOYMENT, POD
from dsv4_operator.kube.port import JsonObject, KubeApi
from dsv4_operator.observe.blame import blame_by_generation, count_blame
from dsv4_operator.observe.generations import fingerprint_pointed_at, view_generations
from dsv4_operator.observe.observation import Fault, Observation
from dsv4_operator.observe.pods import PodView, view_pod
from dsv4_operator.observe.status import build_status
from dsv4_operator.observe.transitions import news, previous_conditions
from dsv4_operator.observe.workloads import WorkloadView, view_workloads
from dsv4_operator.plan.generations import GenerationPlan, hold, plan_generations, serving_without_pointer
from dsv4_operator.plan.pruning import ChildKey, child_key, plan_pruning
from dsv4_operator.plan.replacement import why_replaced
from dsv4_operator.policy import Action, Finding, evaluate, refusals
from dsv4_operator.runtime.cache import ObjectCache
from dsv4_operator.runtime.canaries import CanaryWatch
from dsv4_operator.runtime.children import ChildWriter, ForeignObject
from dsv4_operator.runtime.events import EventBatch, EventRecorder
from dsv4_operator.runtime.http_peers import PeerClient
from dsv4_operator.runtime.membership import MembershipKeeper
from dsv4_operator.runtime.metrics import OperatorMetrics
from dsv4_operator.runtime.outcome import NotYet
from dsv4_operator.runtime.router_keys import RouterKeys
from dsv4_operator.runtime.routers import RouterWatch

T = TypeVar("T")

LOG = logging.getLogger(__name__)

SETTLED_SECONDS = 15.0
"""How often a quiet deployment is looked at: routers change without a Kubernetes event."""
MOVING_SECONDS = 5.0
"""How often a deployment is looked at while it is not Ready: canaries change without a Kubernetes event."""

Key = tuple[str, str]
"""(namespace, name)"""


@dataclass(frozen=True, slots=True)
class ReconcilerConfig:
    """What is the same for all deployments."""

    images: ImageDefaults
    operator_namespace: str | None
    cluster_domain: str


@dataclass(slots=True)
class _Pass:
    """What one pass has in hand."""

    raw: JsonObject
    deployment: DSV4Deployment | None
    problems: list[tuple[str, str]]
    children: list[JsonObject]
    pods: list[PodView]
    workloads: dict[tuple[str, Role], WorkloadView]
    events: EventBatch
    findings: list[Finding] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    failed: Exception | None = None
    """The first write that may work another time: the pass goes on without it, and ends with it."""
    drift: list[str] = field(default_factory=list)
    look_again: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.raw["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.raw["metadata"]["uid"])

    @property
    def fingerprints(self) -> set[str]:
        labels = (child["metadata"].get("labels") or {} for child in self.children)
        return {found[LABEL_FINGERPRINT] for found in labels if LABEL_FINGERPRINT in found}


class Reconciler:
    """Brings deployments to what their specs say. One instance serves all; passes of one key never overlap."""

    def __init__(
        self,
        api: KubeApi,
        cache: ObjectCache,
        recorder: EventRecorder,
        metrics: OperatorMetrics,
        peers: PeerClient,
        config: ReconcilerConfig,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._cache = cache
        self._recorder = recorder
        self._metrics = metrics
        self._config = config
        self._clock = clock
        self._writer = ChildWriter(api, cache)
        self._keys = RouterKeys(api, self._now)
        self._routers = RouterWatch(peers, self._now)
        self._canaries = CanaryWatch(peers, self._now)
        self._membership = MembershipKeeper(api, cache, self._writer, self._keys, self._routers, self._now)

    async def __call__(self, key: Key) -> float | None:
        """One pass. Returns when to look again, in seconds; None for an object that is gone or going."""
        namespace, name = key
        raw = self._cache.get(DSV4_DEPLOYMENT, namespace, name)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            # Children follow through their owner references; nothing outside the cluster is left to clean.
            self._metrics.drop_object(namespace, name)
            self._keys.forget(namespace, name)
            return None
        this = self._gather(raw)
        ctx = self._context(this)
        try:
            plan = await self._act(this, ctx)
            status = await self._observe(this, ctx, plan)
            await self._write_status(this, status)
        except Exception:
            await this.events.flush()
            raise
        # Not in a `finally`: a pass is cancelled when the lease is lost, and then writes no more.
        await this.events.flush()
        if this.failed is not None:
            raise this.failed
        ready = any(c.type == ConditionType.READY and c.status == "True" for c in status.conditions)
        settled = ready and plan is not None and plan.leaving == set() and not this.faults
        return min([SETTLED_SECONDS if settled else MOVING_SECONDS, *this.look_again])

    def forget_gone_pods(self) -> None:
        """Drop memory of pods that no longer exist; called after a resync."""
        uids = {pod["metadata"]["uid"] for pod in self._cache.list(POD)}
        self._routers.forget_all_but(uids)
        self._canaries.forget_all_but(uids)

    def _now(self) -> float:
        return self._clock().timestamp()

    def _gather(self, raw: JsonObject) -> _Pass:
        deployment, problems = None, []
        try:
            deployment = parse_deployment(raw)
        except InvalidSpecError as error:
            problems = error.problems
        children, pods = self._live(raw)
        return _Pass(
            raw=raw,
            deployment=deployment,
            problems=problems,
            children=children,
            pods=pods,
            workloads=view_workloads(children),
            events=self._recorder.batch(),
        )

    def _live(self, raw: JsonObject) -> tuple[list[JsonObject], list[PodView]]:
        """Cached children without pods, and views of the pods."""
        objects = self._cache.children_of(raw["metadata"]["namespace"], raw["metadata"]["name"])
        pods = [view for obj in objects if obj["kind"] == "Pod" and (view := view_pod(obj)) is not None]
        return [obj for obj in objects if obj["kind"] != "Pod"], sorted(pods, key=lambda pod: pod.name)

    def _context(self, this: _Pass) -> DesiredContext | None:
        """What the builders need; None when the spec does not parse or policy refuses it."""
        if this.deployment is None:
            return None
        spec, metadata = this.deployment.spec, this.deployment.metadata
        images = resolve_images(spec, self._config.images)
        this.findings = evaluate(spec, images)
        if refusals(this.findings):
            return None
        release = KNOWN_RELEASES[release_of(images.engine or "", spec.engine.release) or ""]
        return DesiredContext(
            name=metadata.name,
            namespace=metadata.namespace,
            uid=metadata.uid,
            spec=spec,
            images=images,
            release=release,
            operator_namespace=self._config.operator_namespace,
            cluster_domain=self._config.cluster_domain,
        )

    # -- acting

    async def _act(self, this: _Pass, ctx: DesiredContext | None) -> GenerationPlan | None:
        """Write what must be written; returns where traffic goes. Without a valid spec only membership is kept true."""
        if ctx is None:
            pointed_at = fingerprint_pointed_at(this.name, this.children)
            await self._keep_membership(this, this.fingerprints, None)
            if pointed_at is None:
                return None
            return plan_generations(pointed_at, pointed_at, this.fingerprints, {pointed_at: True})
        generations = view_generations(this.pods, this.workloads, ctx.spec.router.enabled)
        pointed_at = fingerprint_pointed_at(this.name, this.children) if ctx.spec.router.enabled else None
        pointed_at = pointed_at or serving_without_pointer(generations)
        whole = {view.fingerprint: view.whole for view in generations}
        plan = plan_generations(ctx.fingerprint, pointed_at, this.fingerprints, whole)
        if ctx.spec.paused:
            return hold(plan, pointed_at)
        if pointed_at is not None and ctx.fingerprint not in this.fingerprints:
            self._tell_new_generation(this, ctx, pointed_at)
        routed: set[str] = set()
        if ctx.spec.router.enabled:
            await self._guard(this, self._keys.ensure(ctx))
            routed = this.fingerprints | {ctx.fingerprint}
        await self._keep_membership(this, routed, ctx)
        wanted = await self._apply_children(this, ctx, plan)
        if ctx.spec.router.enabled:
            # Where the Service was not turned, what it points at goes on serving and keeps all it has.
            now = self._cache.children_of(ctx.namespace, ctx.name)
            plan = hold(plan, fingerprint_pointed_at(ctx.name, now) or pointed_at)
        if plan.switched:
            message = f"generation {plan.serving} is whole and serves; {pointed_at} drains"
            this.events.add(this.raw, "Normal", Reason.UP_TO_DATE, message, action="Switch")
        wanted |= {("v1", "ConfigMap", workers_name(ctx.name, fp)) for fp in routed - plan.leaving}
        if this.failed is None:
            await self._prune(this, ctx, plan, wanted)
        return plan

    async def _keep_membership(self, this: _Pass, fingerprints: set[str], ctx: DesiredContext | None) -> None:
        async def guard(write: Awaitable[str | None]) -> str | None:
            return await self._guard(this, write)

        result = await self._membership.keep(this.raw, this.pods, fingerprints, ctx, guard)
        this.drift += result.drift
        this.look_again += result.look_again

    async def _apply_children(self, this: _Pass, ctx: DesiredContext, plan: GenerationPlan) -> set[ChildKey]:
        wanted: set[ChildKey] = set()
        most = _prompt_tokens(this) if plan.serving != ctx.fingerprint else None
        for intent in [*build_object_children(ctx, plan.serving, most), *build_generation_children(ctx)]:
            wanted.add(child_key(intent))
            before = next((child for child in this.children if child_key(child) == child_key(intent)), None)
            reason = await self._guard(this, self._writer.apply(intent, ctx.uid))
            if reason is None:
                continue
            LOG.info("applied %s %s: %s", intent["kind"], intent["metadata"]["name"], reason)
            self._tell_why(this, intent, before)
        return wanted

    @staticmethod
    def _tell_why(this: _Pass, intent: JsonObject, before: JsonObject | None) -> None:
        """Say which difference replaces pods of a role."""
        if before is None or intent["kind"] != "Deployment":
            return
        reasons = why_replaced(before["spec"]["template"], intent["spec"]["template"])
        if reasons:
            role = intent["metadata"]["labels"][LABEL_ROLE]
            message = f"replacing {role} pods: {'; '.join(reasons)}"
            this.events.add(this.raw, "Normal", Reason.ROLLING_ROLE, message, action="Roll")

    @staticmethod
    def _tell_new_generation(this: _Pass, ctx: DesiredContext, serving: str) -> None:
        """Say which fields made a new fingerprint."""
        workload = next(
            (
                child
                for child in this.children
                if (child["metadata"].get("labels") or {}).get(LABEL_FINGERPRINT) == serving
                and read_fingerprint_inputs(child)
            ),
            None,
        )
        because = changed_inputs(read_fingerprint_inputs(workload), ctx.fingerprint_inputs) if workload else []
        fields = f" because of {', '.join(because)}" if because else ""
        message = f"generation {ctx.fingerprint} is made beside {serving}{fields}"
        this.events.add(this.raw, "Normal", Reason.NEW_GENERATION, message, action="Switch")

    async def _guard(self, this: _Pass, write: Awaitable[T]) -> T | None:
        """Carry out one write; what concerns this child alone becomes a fault and does not stop the others."""
        try:
            return await write
        except ForeignObject as error:
            this.faults.append(Fault(Reason.NAME_CONFLICT, str(error)))
        except KindNotInstalled as error:
            this.faults.append(Fault(Reason.API_MISSING, str(error)))
        except (Invalid, Forbidden) as error:
            this.faults.append(Fault(Reason.APPLY_REJECTED, str(error)))
        except NotYet as error:
            this.failed = this.failed or error
        except ApiError as error:
            this.failed = this.failed or error
            if isinstance(error, ApiUnavailable) and error.status is not None:
                this.faults.append(Fault(Reason.APPLY_FAILED, str(error)))
        return None

    async def _prune(self, this: _Pass, ctx: DesiredContext, plan: GenerationPlan, wanted: set[ChildKey]) -> None:
        kept = {plan.serving} - {ctx.fingerprint}
        with_routers = {pod.fingerprint for pod in this.pods if pod.role is Role.ROUTER} & plan.leaving
        for obj in plan_pruning(this.children, wanted, ctx.uid, kept, with_routers):
            if await self._guard(this, self._writer.delete(dict(obj))):
                LOG.info("deleted %s %s: no longer wanted", obj["kind"], obj["metadata"]["name"])

    # -- observing

    async def _observe(
        self, this: _Pass, ctx: DesiredContext | None, plan: GenerationPlan | None
    ) -> DSV4DeploymentStatus:
        metadata = this.raw["metadata"]
        children, pods = self._live(this.raw)  # what this pass has just written included
        canary = this.deployment.spec.canary if this.deployment is not None else CanarySpec()
        reports = await self._canaries.read(pods, canary.interval_seconds) if canary.enabled else {}
        seen = Observation(
            name=metadata["name"],
            namespace=metadata["namespace"],
            generation=int(metadata.get("generation", 0)),
            spec=this.deployment.spec if this.deployment is not None else None,
            pods=pods,
            workloads=view_workloads(children),
            reports=reports,
            blame=blame_by_generation(pods, reports, self._now(), canary.interval_seconds, canary.timeout_seconds),
            plan=plan,
            desired=ctx.fingerprint if ctx is not None else "",
            findings=this.findings,
            spec_problems=this.problems,
            faults=this.faults,
            router_drift=this.drift,
            cluster_domain=self._config.cluster_domain,
        )
        self._metrics.set_blame(seen.namespace, seen.name, count_blame(seen.blame.values()))
        now = self._clock().strftime("%Y-%m-%dT%H:%M:%SZ")
        return build_status(seen, previous_conditions(this.raw.get("status") or {}), now)

    async def _write_status(self, this: _Pass, status: DSV4DeploymentStatus) -> None:
        metadata = this.raw["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        self._metrics.set_conditions(namespace, name, [(c.type, c.status) for c in status.conditions])
        self._metrics.set_findings(namespace, name, [(f.rule, f.action) for f in status.findings])
        self._metrics.set_policy_allowed(namespace, name, _overridden(this))
        self._metrics.set_generations(namespace, name, len(status.generations))
        self._metrics.set_router_drift(namespace, name, len(this.drift))
        dumped = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        if this.raw.get("status") == dumped:
            return
        for item in news(this.raw.get("status") or {}, status):
            this.events.add(this.raw, item.event_type, item.reason, item.message, action=item.action)
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": name, "namespace": namespace, "uid": metadata["uid"]},
            "status": dumped,
        }
        try:
            updated = await self._api.apply_status(body, STATUS_FIELD_MANAGER)
        except NotFound:
            return
        self._cache.put(DSV4_DEPLOYMENT, updated)


def _overridden(this: _Pass) -> set[str]:
    """The rules that would refuse the spec, were they not in its policy.allow."""
    if this.deployment is None:
        return set()
    allowed = {entry.rule for entry in this.deployment.spec.policy.allow}
    return {finding.rule for finding in this.findings if finding.action is Action.WARN} & allowed


def _prompt_tokens(this: _Pass) -> int | None:
    """promptTokens that the canaries are told now."""
    name = settings_name(this.name)
    found = (c for c in this.children if c["kind"] == "ConfigMap" and c["metadata"]["name"] == name)
    return next((read_prompt_tokens(settings) for settings in found), None)
