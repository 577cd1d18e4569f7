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
from dsv4_operator.handlers import CHILD_KINDS, CHILD_SELECTOR, OPTIONAL_KINDS, Key, kopf_settings, register_handlers
from dsv4_operator.kube.client import KubeClient
from dsv4_operator.kube.connect import load_configuration
from dsv4_operator.kube.errors import ApiError, KindNotInstalled
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
        watching = asyncio.create_task(self._watch(registry), name="watch")
        working = {
            asyncio.create_task(self._queue.run(handle, self._settings.workers, DRAIN_SECONDS), name="queue"),
            asyncio.create_task(self._resync_for_ever(api, reconciler), name="resync"),
            asyncio.create_task(self._stop.wait(), name="stop"),
            asyncio.create_task(lost.wait(), name="lease"),
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
            await peers.close()

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
            namespaces=self._settings.namespaces,
            # Kopf would ask for the user's name, and the uid of a container often has none.
            identity=cast(Any, self._identity),
        )
        # Kopf has just taken the signals; they are ours, since work must end before the watches do.
        self.take_signals()
        await kopf.run_tasks(tasks, ignored=others)

    # -- resync: what watches missed (kopf sends no DELETED for what vanished behind a 410)

    async def _find_optional_kinds(self, api: KubeApi) -> None:
        """Watch the optional kinds that the cluster serves. An API that comes later is found at the next start."""
        found = []
        for kind in OPTIONAL_KINDS:
            try:
                await api.list(
                    kind, self._settings.namespaces[0] if self._settings.namespaces else None, CHILD_SELECTOR
                )
            except KindNotInstalled:
                LOG.info("%s is not installed in this cluster", kind.kind)
            else:
                found.append(kind)
        self._kinds = (DSV4_DEPLOYMENT, *CHILD_KINDS, *found)

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
        for kind in self._kinds:
            selector = None if kind == DSV4_DEPLOYMENT else CHILD_SELECTOR
            for namespace in self._settings.namespaces or (None,):
                before = {key: self._owner(key) for key in self._cache.keys(kind)}
                listing = await api.list(kind, namespace, selector)
                for key in self._cache.replace_all(kind, listing.items, listing.resource_version, namespace):
                    owner = self._owner(key) or before.get(key)
                    if owner is not None:
                        self._queue.add(owner)
        self._health.resync_succeeded()
        self._metrics.resync_done("success")

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


async def run_until_signalled(settings: OperatorSettings) -> None:
    """Run one replica; SIGTERM and SIGINT stop it cleanly, releasing the lease."""
    operator = Operator(settings)
    operator.take_signals()
    await operator.run()
