"""Finding peers: every address behind the headless Service of the other role."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

_LOOKUP_SECONDS = 5.0


async def resolve(host: str) -> list[str]:
    """All A and AAAA addresses of ``host``, sorted; empty when the name does not exist (no peers yet).

    Raises OSError when the name server itself fails or does not answer in time, which says nothing about
    peers.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_LOOKUP_SECONDS):
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)):
            return []
        raise OSError(f"name lookup of {host} failed") from error
    except UnicodeError:
        return []
    return sorted({str(entry[4][0]) for entry in found}, key=_key)


def _key(address: str) -> tuple[int, int]:
    ip = ipaddress.ip_address(address.split("%", maxsplit=1)[0])
    return ip.version, int(ip)


def base_url(address: str, port: int) -> str:
    """URL of an engine at an address of either family."""
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
