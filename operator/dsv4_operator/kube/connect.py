"""Where the API server is and how to log in: a kubeconfig, or the Pod's service account.

Order: the explicit path, then $KUBECONFIG, then the Pod's service account, then ~/.kube/config. Loading is
left to `kubernetes.aio.config`, so that exec plug-ins, OIDC and token files work as for every other client.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.request import getproxies

import aiohttp
import yaml
from kubernetes.aio import config as kube_config
from kubernetes.aio.client.configuration import Configuration

MAX_CONNECTIONS = 64
"""Of the one pool that all calls share. HTTP/1.1: one request at a time on each."""


class ConnectError(Exception):
    """No usable kubeconfig or service account; the message says where we looked, and a remedy."""


Load = Callable[[Any], Awaitable[None]]
"""(Re)reads the credentials into a kubernetes.aio Configuration."""


async def load_configuration(kubeconfig: str | None = None, context: str | None = None) -> tuple[Any, Load]:
    """The client's Configuration and the function that refreshes its credentials. Raises ConnectError."""
    configuration = Configuration()
    configuration.connection_pool_maxsize = MAX_CONNECTIONS
    configuration.client_session_kwargs = {
        # The library trusts the environment always: then aiohttp reads proxies and ~/.netrc in a thread at every
        # request, which more than doubles the CPU time of a call, and a netrc could replace our credentials.
        "trust_env": bool(getproxies()),
        "cookie_jar": aiohttp.DummyCookieJar(),
    }
    load = _loader(kubeconfig, context)
    await load(configuration)
    return configuration, load


def _loader(kubeconfig: str | None, context: str | None) -> Load:
    path = kubeconfig or os.environ.get("KUBECONFIG") or None
    in_pod = bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
    if path is None and in_pod and context is None:
        return _load_service_account
    chosen = path or str(Path("~/.kube/config").expanduser())

    async def load(configuration: Any) -> None:
        if not await asyncio.to_thread(_any_file, chosen):
            raise ConnectError(
                f"kubeconfig {chosen}: no such file, and this is no Pod with a service account; "
                "set KUBECONFIG or --kubeconfig"
            )
        try:
            # persist_config would write the user's file back.
            await kube_config.load_kube_config(
                config_file=chosen, context=context, client_configuration=configuration, persist_config=False
            )
        except (
            kube_config.ConfigException,
            yaml.YAMLError,
            OSError,
            ValueError,
            TypeError,
            KeyError,
        ) as error:
            first_line = (str(error).splitlines() or [type(error).__name__])[0]
            raise ConnectError(f"kubeconfig {chosen}: {first_line}") from error

    return load


def _any_file(paths: str) -> bool:
    return any(Path(path).is_file() for path in paths.split(os.pathsep))


async def _load_service_account(configuration: Any) -> None:
    try:
        # Reads files; the loader's own hook reads the token again every minute (kubelet rotates it).
        await asyncio.to_thread(kube_config.load_incluster_config, configuration)
    except (kube_config.ConfigException, OSError) as error:
        raise ConnectError(f"service account of this Pod: {error}; is automountServiceAccountToken on?") from error
