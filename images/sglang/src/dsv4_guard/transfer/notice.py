"""Telling decode that a room failed on prefill.

From 0.5.21 on prefill has status messages for this. Before, decode learns nothing and waits its whole time-out; there
a NIXL notification is sent, behind the writes on the same connection. Decode without the plugin ignores it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from dsv4_guard import MARK
from dsv4_guard.transfer import work

log = logging.getLogger(MARK)
TAG = "dsv4guard"
Handler = Callable[[Any, int, str], None]
"""Called on decode with (manager, room, text of the notice)."""

_handlers: dict[str, Handler] = {}


def on(kind: str, handler: Handler) -> None:
    """Handle notices of `kind` on decode."""
    _handlers[kind] = handler


def send(manager: Any, peers: list[str], room: int, kind: str, text: str) -> None:
    """Send a notice to the decode agents `peers`. SGLang splits notifications at "_" into room, tag and the rest."""
    for peer in peers:
        try:
            manager.agent.send_notif(peer, f"{room}_{TAG}_{kind}_{text}".encode("ascii", "replace"))
        except Exception as error:
            log.warning("%s: room %s: notice to decode %s: %s", MARK, room, peer, error)


def peers_of(manager: Any, room: int) -> list[str]:
    """Names of the decode agents that take part in the room."""
    return [info.agent_name for info in list(manager.transfer_infos.get(room, {}).values()) if not _dummy(info)]


def _dummy(info: Any) -> bool:
    value = info.is_dummy
    return bool(value() if callable(value) else value)


def teller(manager: Any, room: int, status_messages: bool) -> Callable[[str], None]:
    """What tells decode of the room's failure, with the addresses taken now: the room is forgotten soon."""
    if not status_messages:
        peers = peers_of(manager, room)
        return lambda reason: send(manager, peers, room, "fail", reason)
    from sglang.srt.disaggregation.base.conn import KVPoll

    targets = manager._room_notify_targets(room)

    def tell(reason: str) -> None:
        manager.send_kv_status_message(
            targets=targets, bootstrap_room=room, status=KVPoll.Failed, failure_reason=reason
        )

    return tell


def _failed(manager: Any, room: int, text: str) -> None:
    if room in manager.request_status:
        work.fail_room(manager, room, text)


on("fail", _failed)


def listen(manager: Any) -> None:
    """Decode: take our notices out of the agent's notifications before SGLang looks at them."""
    agent = manager.agent
    drain = agent.get_new_notifs
    if getattr(drain, "dsv4_guard", False):
        return

    def get_new_notifs(*args: Any, **kwargs: Any) -> Any:
        kept: dict[str, list[bytes]] = {}
        for peer, messages in drain(*args, **kwargs).items():
            rest = [message for message in messages if not _take(manager, message)]
            if rest:
                kept[peer] = rest
        return kept

    get_new_notifs.dsv4_guard = True  # type: ignore[attr-defined]
    agent.get_new_notifs = get_new_notifs


def _take(manager: Any, message: bytes) -> bool:
    parts = message.decode("ascii", "replace").split("_", 3)
    if len(parts) != 4 or parts[1] != TAG or not parts[0].isdigit():
        return False
    handler = _handlers.get(parts[2])
    if handler is not None:
        handler(manager, int(parts[0]), parts[3])
    return True
