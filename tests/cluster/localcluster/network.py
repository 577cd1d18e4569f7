"""A network namespace per cluster, joined to the host by a veth pair: subnets, routes, ports, and their removal.

Everything of a node-mode cluster lives in its namespace, so kube-proxy's tables, bridges and forwarding never touch the
host's. The host gets one interface and two routes (pods, Services), which vanish with the namespace.
"""

import ipaddress
import json
import os
import random
import socket
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from localcluster.errors import ClusterError
from localcluster.paths import file_lock, lock_path
from localcluster.state import ClusterState, Network, all_states

BASE_RANGE = "10.192.0.0/10"
BLOCK_PREFIX = 20
# Below Linux's default range of outgoing ports (32768 and up), so that no connection takes a port before its server.
PORT_RANGE = (20000, 30000)


def ip(*arguments: str, netns: str | None = None, check: bool = True) -> str:
    """Runs the `ip` tool and returns its output. Raises ClusterError with its message."""
    command = ["ip", *(["-n", netns] if netns else []), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise ClusterError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _used_on_host() -> list[ipaddress.IPv4Network]:
    routes = json.loads(ip("-j", "-4", "route", "show", "table", "all") or "[]")
    destinations = (route["dst"] for route in routes if route["dst"] != "default")
    return [ipaddress.IPv4Network(destination, strict=False) for destination in destinations]


def plan(name: str) -> Network:
    """Picks a free block and names for a cluster. Call it under the lock of the run root, and save before releasing.

    Layout of the /20 block: pods in the first /22, Services in the second, the link to the host at its end.
    """
    base = ipaddress.IPv4Network(os.environ.get("DSV4_CLUSTER_NET", BASE_RANGE))
    taken = _used_on_host()
    taken += [ipaddress.IPv4Network(s.network.block) for s in all_states() if s.network is not None]
    blocks = list(base.subnets(new_prefix=BLOCK_PREFIX))
    random.shuffle(blocks)
    free = next((block for block in blocks if not any(block.overlaps(other) for other in taken)), None)
    if free is None:
        raise ClusterError(f"no free /{BLOCK_PREFIX} block in {base}; set DSV4_CLUSTER_NET to another private range")
    quarters = list(free.subnets(new_prefix=BLOCK_PREFIX + 2))
    link = list(quarters[3].subnets(new_prefix=30))[-1]
    host_address, node_address = (str(address) for address in link.hosts())
    links = {entry["ifname"] for entry in json.loads(ip("-j", "link", "show"))}
    links |= {s.network.host_link for s in all_states() if s.network is not None}
    # An interface name has at most 15 bytes, so it cannot carry the cluster's name.
    host_link = next(f"dsv4-{number}" for number in range(10000) if f"dsv4-{number}" not in links)
    return Network(
        block=str(free),
        netns=f"dsv4-{name}",
        host_link=host_link,
        host_address=host_address,
        node_address=node_address,
        pod_cidr=str(quarters[0]),
        service_cidr=str(quarters[1]),
    )


def create(network: Network) -> None:
    """Makes the namespace, the link and the routes. Idempotent: what exists is made anew."""
    remove(network)
    try:
        with file_lock(lock_path("netns")):
            ip("netns", "add", network.netns)
    except ClusterError as error:
        raise ClusterError(f"cannot make a network namespace (node mode needs root): {error}") from error
    peer = "host0"
    ip("link", "add", network.host_link, "type", "veth", "peer", "name", peer, "netns", network.netns)
    ip("addr", "add", f"{network.host_address}/30", "dev", network.host_link)
    ip("link", "set", network.host_link, "up")
    ip("link", "set", "lo", "up", netns=network.netns)
    ip("addr", "add", f"{network.node_address}/30", "dev", peer, netns=network.netns)
    ip("link", "set", peer, "up", netns=network.netns)
    ip("route", "add", "default", "via", network.host_address, netns=network.netns)
    for cidr in (network.pod_cidr, network.service_cidr):
        ip("route", "add", cidr, "via", network.node_address, "dev", network.host_link)
    # Forwarding is a setting of the namespace: the host's own stays as it is.
    in_netns(network.netns, ["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])


def in_netns(netns: str, command: Sequence[str]) -> str:
    """Runs a short command inside a namespace, with a /sys and /proc/sys that show that namespace."""
    done = subprocess.run(["ip", "netns", "exec", netns, *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"{' '.join(command)} in {netns}: {done.stderr.strip()}")
    return done.stdout


def remove(network: Network) -> None:
    """Removes link, routes and namespace; nothing of it needs to exist."""
    ip("link", "del", network.host_link, check=False)
    if Path(f"/run/netns/{network.netns}").exists():
        ip("netns", "del", network.netns)
    _drop_empty_mount()


def _drop_empty_mount() -> None:
    """Undoes the mount that `ip netns add` lays over its folder, once the last namespace is gone."""
    folder = Path("/run/netns")
    with file_lock(lock_path("netns")):
        mounted = f" {folder} " in Path("/proc/self/mountinfo").read_text()
        if mounted and not any(folder.iterdir()):
            subprocess.run(["umount", str(folder)], capture_output=True, check=False)


def _bindable(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def plan_ports(names: Iterable[str], states: Iterable[ClusterState]) -> dict[str, int]:
    """Free loopback ports, different from those of every other cluster. Call it under the lock of the run root."""
    taken = {port for state in states for port in state.ports.values()}
    wanted = list(names)
    candidates = random.sample(range(*PORT_RANGE), k=2000)
    free = (port for port in candidates if port not in taken and _bindable(port))
    found = dict(zip(wanted, free, strict=False))
    if len(found) < len(wanted):
        raise ClusterError(f"no free ports between {PORT_RANGE[0]} and {PORT_RANGE[1]} on 127.0.0.1")
    return found
