"""The running operator: start, lead, resync, serve, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
from typing import Any, cast

import kopf

from dsv4_operator import __version__
from dsv4_operator.engine.images import ImageDefaults
from dsv4_operator.handlers import (
    CHILD_KINDS,
    CHILD_SELECTOR,
    OPTIONAL_KINDS,
    Key,
    kopf_insights,
    kopf_settings,
    register_handlers,
    stop_watching,
)
from dsv4_operator.kube.client import KubeClient
from dsv4_operator.kube.connect import load_configuration
from dsv4_operator.kube.errors import ApiError, Forbidden, KindNotInstalled, NotFound
from dsv4_operator.kube.kinds import DSV4_DEPLOYMENT, Kind
from dsv4_operator.kube.port import KubeApi
from dsv4_operator.reconcile import Reconciler, ReconcilerConfig
from dsv4_operator.runtime.cache import ObjectCache, ObjectKey
from dsv4_operator.runtime.crd_check import find_pruned_fields
from dsv4_operator.runtime.events import EventRecorder
from dsv4_operator.runtime.health import Health
from dsv4_operator.runtime.http import build_app, serving
from dsv4_operator.runtime.http_peers import PeerClient
from dsv4_operator.runtime.lease import LeaderLease
from dsv4_operator.runtime.logs import about
from dsv4_operator.runtime.metrics import OperatorMetrics
from dsv4_operator.runtime.queue import WorkQueue
from dsv4_operator.runtime.settings import OperatorSettings
from dsv4_operator.runtime.webhook import Webhook

LOG = logging.getLogger(__name__)

RESYNC_RETRY_SECONDS = 5.0
RESYNC_LIMIT_FACTOR = 3
"""/healthz fails when no resync succeeded for this many intervals."""
DRAIN_SECONDS = 20.0
LEFTOVER_ROUNDS = 10
"""How often, once a second, tasks are cancelled that kopf leaves running."""
EVENT_SECONDS = 60.0
"""An equal event is posted once in this time: a flapping canary must not flood, a second failure must be told."""


class LeadershipLost(Exception):
    """The lease went to somebody else, or could not be renewed: stop at once, the replacement is working."""


class Operator:
    """One replica. `run` returns after a clean stop and raises LeadershipLost when it must not go on."""

    def __init__(self, settings: OperatorSettings) -> None:
        self._settings = settings
        self._metrics = OperatorMetrics(__version__)
        self._cache = ObjectCache()
        self._queue: WorkQueue[Key] = WorkQueue(observer=self._metrics)
        self._stop = asyncio.Event()
        self._webhook: Webhook | None = None
        self._health = Health(
            queue=self._queue.stats,
            queue_stall_seconds=settings.queue_stall_seconds,
            resync_limit_seconds=RESYNC_LIMIT_FACTOR * settings.resync_seconds,
            webhook=lambda: None if self._webhook is None else self._webhook.unreadiness(),
        )
        self._identity = os.environ.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}"
        self._kinds: tuple[Kind, ...] = (DSV4_DEPLOYMENT, *CHILD_KINDS)
        self._namespaces = settings.namespaces  # none means all; loses those that refuse us
        self._insights = kopf_insights()

    def stop(self) -> None:
        """Ask for a clean stop."""
        self._health.stop()
        self._stop.set()

    def take_signals(self) -> None:
        """Have SIGTERM and SIGINT stop this replica cleanly."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.stop)

    async def run(self) -> None:
        """Serve until `stop`."""
        settings = self._settings
        self._metrics.watch_queue(self._queue.stats)
        self._metrics.watch_cache(lambda: len(self._cache))
        async with contextlib.AsyncExitStack() as stack:
            api = await KubeClient.connect(
                user_agent=f"dsv4-operator/{__version__}",
                kubeconfig=settings.kubeconfig,
                context=settings.context,
                request_timeout=settings.request_timeout,
                observer=self._metrics,
            )
            stack.push_async_callback(api.close)
            if settings.webhook:
                # Standing by or leading: the API server calls any replica that is Ready.
                self._webhook = Webhook(api, settings, self._metrics)
                await stack.enter_async_context(self._webhook.running())
            app = build_app(self._health, self._metrics if settings.metrics else None)
            port = await stack.enter_async_context(serving(app, settings.listen_host, settings.listen_port))
            LOG.info("dsv4-operator %s listens on port %d", __version__, port)
            if settings.lease:
                lease = await self._lead(api)
                if lease is None:
                    return
                stack.push_async_callback(lease.release)
                await self._work(api, lease.lost)
            else:
                self._metrics.set_leader(True)
                await self._work(api, asyncio.Event())

    async def _lead(self, api: KubeApi) -> LeaderLease | None:
        """Wait for the lease; None when asked to stop meanwhile."""
        lease = LeaderLease(
            api,
            namespace=self._settings.lease_namespace,
            name=self._settings.lease_name,
            identity=self._identity,
            on_change=self._metrics.set_leader,
        )
        acquiring = asyncio.create_task(lease.acquire())
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({acquiring, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not acquiring.done():
            acquiring.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await acquiring
            return None
        stopping.cancel()
        await acquiring
        return lease

    async def _work(self, api: KubeApi, lost: asyncio.Event) -> None:
        self._health.start_working()
        peers = PeerClient()
        reconciler = self._reconciler(api, peers)
        if not await self._first_resync(api, lost):
            return
        if not self._settings.namespaces:  # with rights in some namespaces alone, the CRD is out of reach
            self._metrics.set_crd_pruned_fields(len(await find_pruned_fields(api)))
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry)(_login(self._settings))
        register_handlers(registry, self._cache, self._queue, self._kinds)
        handle = _logged(reconciler)
        others = asyncio.all_tasks()
        watching = asyncio.create_task(self._watch(registry), name="watch")
        working = {
            asyncio.create_task(self._queue.run(handle, self._settings.workers, DRAIN_SECONDS), name="queue"),
            asyncio.create_task(self._resync_for_ever(api, reconciler), name="resync"),
            asyncio.create_task(self._stop.wait(), name="stop"),
            asyncio.create_task(self._cut_off(lost), name="lease"),
        }
        try:
            done, _ = await asyncio.wait({watching, *working}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a watcher that died takes the process down: better restarted than deaf
                if task.get_name() == "lease":
                    raise LeadershipLost
                LOG.info("stopping (%s)", task.get_name())
        finally:
            # Our own work first: when kopf ends it cancels every task that was made after its start.
            await self._queue.stop(DRAIN_SECONDS)
            await _cancel(working)
            await _cancel({watching})
            await _end_all_but(others)
            await peers.close()

    async def _cut_off(self, lost: asyncio.Event) -> None:
        """Once the lease is lost another may lead, and two must not write: no pass goes on, in a clean stop neither."""
        await lost.wait()
        await self._queue.stop(0)

    def _reconciler(self, api: KubeApi, peers: PeerClient) -> Reconciler:
        settings = self._settings
        return Reconciler(
            api=api,
            cache=self._cache,
            recorder=EventRecorder(api, component="dsv4-operator", instance=self._identity, ttl=EVENT_SECONDS),
            metrics=self._metrics,
            peers=peers,
            config=ReconcilerConfig(
                images=ImageDefaults(settings.engine_image, settings.canary_image, settings.router_image),
                operator_namespace=os.environ.get("POD_NAMESPACE"),
                cluster_domain=settings.cluster_domain,
            ),
        )

    async def _watch(self, registry: kopf.OperatorRegistry) -> None:
        """Kopf's watches, until cancelled."""
        others = asyncio.all_tasks()
        tasks = await kopf.spawn_tasks(
            registry=registry,
            settings=kopf_settings(self._kinds),
            standalone=True,
            clusterwide=not self._settings.namespaces,
            namespaces=self._namespaces,
            insights=self._insights,
            # Kopf would ask for the user's name, and the uid of a container often has none.
            identity=cast(Any, self._identity),
        )
        # Kopf has just taken the signals; they are ours, since work must end before the watches do.
        self.take_signals()
        ending = asyncio.create_task(kopf.run_tasks(tasks, ignored=others))
        try:
            done, _ = await asyncio.wait({ending, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await _cancel({ending})
            raise
        for task in done:
            task.result()  # not to wait for `ending`, which may not come: see `_end_all_but`

    # -- resync: what watches missed (kopf sends no DELETED for what vanished behind a 410)

    async def _find_optional_kinds(self, api: KubeApi) -> None:
        """Watch the optional kinds that the cluster serves. An API that comes later is found at the next start."""
        found = [kind for kind in OPTIONAL_KINDS if await self._is_served(api, kind)]
        self._kinds = (DSV4_DEPLOYMENT, *CHILD_KINDS, *found)

    async def _is_served(self, api: KubeApi, kind: Kind) -> bool:
        """Asked in the first namespace that does not refuse us, since a refusal hides whether the kind exists."""
        scope = self._namespaces or (None,)
        for namespace in scope:
            try:
                await api.list(kind, namespace, CHILD_SELECTOR)
            except KindNotInstalled:
                LOG.info("%s is not installed in this cluster", kind.kind)
                return False
            except (Forbidden, NotFound):
                if namespace == scope[-1]:
                    raise
            else:
                break
        return True

    async def _first_resync(self, api: KubeApi, lost: asyncio.Event) -> bool:
        """Know everything before the first pass. False when asked to stop meanwhile."""
        while not self._stop.is_set() and not lost.is_set():
            try:
                await self._find_optional_kinds(api)
                await self._resync(api)
            except ApiError as error:
                LOG.warning("first resync failed: %s", error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), RESYNC_RETRY_SECONDS)
            else:
                return True
        if lost.is_set():
            raise LeadershipLost
        return False

    async def _resync_for_ever(self, api: KubeApi, reconciler: Reconciler) -> None:
        while True:
            await asyncio.sleep(self._settings.resync_seconds * random.uniform(0.9, 1.1))  # noqa: S311 - jitter
            try:
                await self._resync(api)
            except ApiError as error:
                self._metrics.resync_done("error")
                LOG.warning("resync failed: %s", error)
            else:
                reconciler.forget_gone_pods()

    async def _resync(self, api: KubeApi) -> None:
        """List everything. Of several namespaces, those that refuse are left out; a refusal of all is an error."""
        refusals = await self._list(api, self._namespaces or (None,))
        if refusals:
            await asyncio.sleep(RESYNC_RETRY_SECONDS)  # an API server that starts may refuse what is allowed
            refusals = await self._list(api, tuple(refusals))
        for namespace, refusal in refusals.items():
            await self._leave_out(namespace, refusal)
        self._health.resync_succeeded()
        self._metrics.resync_done("success")

    async def _list(self, api: KubeApi, namespaces: tuple[str | None, ...]) -> dict[str, ApiError]:
        """List everything in these namespaces; returns those that refuse. Raises ApiError when all of the scope do."""
        refusals: dict[str, ApiError] = {}
        for namespace in namespaces:
            try:
                await self._list_namespace(api, namespace)
            except (Forbidden, NotFound) as error:
                if namespace is None or len(refusals) + 1 == len(self._namespaces):
                    raise
                refusals[namespace] = error
        return refusals

    async def _list_namespace(self, api: KubeApi, namespace: str | None) -> None:
        for kind in self._kinds:
            selector = None if kind == DSV4_DEPLOYMENT else CHILD_SELECTOR
            before = {key: self._owner(key) for key in self._cache.keys(kind)}
            listing = await api.list(kind, namespace, selector)
            for key in self._cache.replace_all(kind, listing.items, listing.resource_version, namespace):
                owner = self._owner(key) or before.get(key)
                if owner is not None:
                    self._queue.add(owner)

    async def _leave_out(self, namespace: str, error: ApiError) -> None:
        """Do without a namespace until the next start: its RoleBinding is gone, mostly with the namespace itself.

        One that goes on being listed would fail every resync, and one that is watched ends kopf with a 403.
        """
        LOG.error("namespace %s is left out until the next start of the operator: %s", namespace, error)
        self._namespaces = tuple(one for one in self._namespaces if one != namespace)
        self._metrics.set_namespaces_left_out(len(self._settings.namespaces) - len(self._namespaces))
        await stop_watching(self._insights, namespace)
        for key in self._cache.leave_out(namespace):
            self._queue.add(key)

    def _owner(self, key: ObjectKey) -> Key | None:
        if key.kind == DSV4_DEPLOYMENT:
            return (key.namespace, key.name)
        obj = self._cache.get(key.kind, key.namespace, key.name)
        return self._cache.owner_of(key.kind, obj) if obj is not None else None


def _logged(reconciler: Reconciler) -> Any:
    async def handle(key: Key) -> float | None:
        with about(*key):
            return await reconciler(key)

    return handle


def _login(settings: OperatorSettings) -> Any:
    """Kopf's login with the very credentials of our own client, whatever other client libraries are installed."""

    async def login(**_: Any) -> kopf.ConnectionInfo:
        configuration, _load = await load_configuration(settings.kubeconfig, settings.context)
        bearer = str((await configuration.auth_settings()).get("BearerToken", {}).get("value", ""))
        return kopf.ConnectionInfo(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            insecure=not configuration.verify_ssl,
            token=bearer.rpartition(" ")[2] or None,  # the scheme is "Bearer" from a file and "bearer" in a pod
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
        )

    return login


async def _cancel(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _end_all_but(others: set[asyncio.Task[Any]]) -> None:
    """End what kopf leaves running when one of its watchers fails, which would keep this process, deaf.

    Kopf cancels it once, together with the tasks by which it pauses a watch. A watcher that is at a request takes this
    for a pause and goes on; the next time it ends.
    """
    for _ in range(LEFTOVER_ROUNDS):
        left = asyncio.all_tasks() - others
        if not left:
            return
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=1.0)


async def run_until_signalled(settings: OperatorSettings) -> None:
    """Run one replica; SIGTERM and SIGINT stop it cleanly, releasing the lease."""
    operator = Operator(settings)
    operator.take_signals()
    await operator.run()
