"""Brings the drafts of both roles together into one spec, and says where they disagreed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dsv4_operator.api.constants import ENGINE_ROLES, Role
from dsv4_operator.cli.importer.draft import RoleDraft
from dsv4_operator.cli.importer.launch import FlagUse, finding
from dsv4_operator.policy import Finding

Drafts = dict[Role, RoleDraft]
Spec = dict[str, Any]

_PAIR: Final = "prefill, decode"
_SPECULATION: Final = "spec.engine.speculative."
_BOTH: Final = frozenset({"spec.indexK.dtype", "spec.overlapSchedule", "spec.network.checksum"})
"""Switches: given on one role, they count for both."""
_CHOICE: Final[dict[str, tuple[Callable[[Any, Any], Any], str]]] = {
    "spec.engine.contextLength": (min, "the shorter one, which both roles can serve"),
    "spec.engine.memFractionStatic": (lambda a, b: min(a, b, key=float), "the smaller one, which fits both"),
    "spec.engine.maxRunningRequests": (lambda _, decode: decode, "decode's, which holds the running batch"),
}
_PREFILL_ALONE: Final = ("spec.hiCache.", "spec.engine.chunkedPrefillSize")
_ELSEWHERE: Final = frozenset({"ib-device", "ucx-devices", "model-path", "revision", "spec.network.transport"})
"""Shared values that become fields in another way."""
CONFLICTING: Final = frozenset({"spec.model.id", "spec.network.ucxTransports"})


def merge(drafts: Drafts, gpus_per_node: int | None) -> tuple[Spec, list[Finding]]:
    """The spec without the model's source, and findings on what the roles disagreed about."""
    spec: Spec = {}
    findings: list[Finding] = []
    _shared(drafts, spec, findings)
    _speculation(drafts, spec, findings)
    _devices(drafts, spec, findings)
    _cache(spec, findings)
    for role in ENGINE_ROLES:
        spec[role.value] = _role(drafts[role], gpus_per_node, findings)
    _common_arguments(drafts, spec)
    _common_env(drafts, spec)
    return spec, findings


def put(spec: Spec, path: str, value: Any) -> None:
    """Set the field at a path such as spec.engine.contextLength."""
    *parents, name = path.split(".")[1:]
    for parent in parents:
        spec = spec.setdefault(parent, {})
    spec[name] = value


def _values(drafts: Drafts, path: str) -> dict[Role, Any]:
    return {role: draft.shared[path] for role, draft in drafts.items() if path in draft.shared}


def _told(values: dict[Role, Any]) -> str:
    def text(value: Any) -> str:
        return ", ".join(value) if isinstance(value, list) else str(value)

    return " and ".join(f"{role.value} has {text(value)}" for role, value in values.items())


def _shared(drafts: Drafts, spec: Spec, findings: list[Finding]) -> None:
    paths = dict.fromkeys(path for draft in drafts.values() for path in draft.shared)
    for path in paths:
        if path in _ELSEWHERE or path.startswith(_SPECULATION):
            continue
        values = _values(drafts, path)
        given = list(values.values())
        chosen = given[0]
        if path.startswith(_PREFILL_ALONE):
            pass
        elif len(given) == 1 and path in _BOTH | _CHOICE.keys():
            role = next(iter(values))
            message = f"{chosen} is set on {role.value} alone; the field is one for both roles, so both get it"
            findings.append(finding("import-roles", path, message))
        elif len(given) == 2 and given[0] != given[1]:
            if path in _CHOICE:
                choose, why = _CHOICE[path]
                chosen = choose(values[Role.PREFILL], values[Role.DECODE])
                findings.append(
                    finding(
                        "import-roles", path, f"{_told(values)}; the field is one for both: {chosen} is taken, {why}"
                    )
                )
            else:
                findings.append(finding("import-role-conflict", path, f"{_told(values)}, but it must be one; decide"))
        put(spec, path, chosen)


def _speculation(drafts: Drafts, spec: Spec, findings: list[Finding]) -> None:
    fields = {
        role: {path: value for path, value in draft.shared.items() if path.startswith(_SPECULATION)}
        for role, draft in drafts.items()
    }
    path = f"{_SPECULATION}algorithm"
    with_it = [role for role in ENGINE_ROLES if path in fields[role]]
    if not with_it:
        message = "left out: it means nothing without an algorithm"
        findings += [
            finding("import-default", f"{role.value}: {name}", message)
            for role in ENGINE_ROLES
            for name in fields[role]
        ]
        return
    chosen = fields[with_it[-1]]
    if len(with_it) == 1:
        message = (
            f"speculation is on {with_it[0].value} alone, and PD needs the same on both, since draft KV travels "
            "too; both roles get it: look at prefill's memory"
        )
        findings.append(finding("import-roles", path, message))
    elif fields[Role.PREFILL] != fields[Role.DECODE]:
        differing = sorted(
            name
            for name in {*fields[Role.PREFILL], *fields[Role.DECODE]}
            if fields[Role.PREFILL].get(name) != fields[Role.DECODE].get(name)
        )
        message = f"the roles differ in {', '.join(differing)}, but must speculate alike; decode's values are taken"
        findings.append(finding("import-roles", "spec.engine.speculative", message))
    for name, value in chosen.items():
        put(spec, name, value)
    if chosen[path] == "EAGLE" and f"{_SPECULATION}numSteps" not in chosen:
        message = "EAGLE without numbers gets 3 steps, top-k 1, 4 draft tokens: the automatic choice asserts for V4"
        findings.append(finding("import-changed", path, message))


def _devices(drafts: Drafts, spec: Spec, findings: list[Finding]) -> None:
    """UCX_NET_DEVICES wins over --disaggregation-ib-device, as in SGLang with NIXL."""
    chosen: dict[Role, list[str]] = {}
    for role, draft in drafts.items():
        flag, variable = draft.shared.get("ib-device"), draft.shared.get("ucx-devices")
        if flag and variable and flag != variable:
            message = (
                f"UCX_NET_DEVICES ({', '.join(variable)}) overrides --disaggregation-ib-device ({', '.join(flag)}) in "
                "SGLang with NIXL; the former is taken"
            )
            findings.append(finding("import-roles", f"{role.value}: $UCX_NET_DEVICES", message))
        if variable or flag:
            chosen[role] = variable or flag or []
    if not chosen:
        return
    if len(chosen) == 2 and chosen[Role.PREFILL] != chosen[Role.DECODE]:
        message = f"{_told(chosen)}, but spec.network.devices is one list; decide (prefill's is written)"
        findings.append(finding("import-role-conflict", "spec.network.devices", message))
    elif len(chosen) == 1:
        message = f"{_told(chosen)} and the other role none; both get them"
        findings.append(finding("import-roles", "spec.network.devices", message))
    put(spec, "spec.network.devices", chosen[min(chosen, key=ENGINE_ROLES.index)])


def _cache(spec: Spec, findings: list[Finding]) -> None:
    """HiCache fields as SGLang would resolve them."""
    cache = spec.get("hiCache")
    if cache is None:
        return
    if not cache.get("enabled"):
        names = ", ".join(cache)
        message = f"left out ({names}): they mean nothing without --enable-hierarchical-cache"
        findings.append(finding("import-default", "prefill: --hicache-*", message))
        del spec["hiCache"]
        return
    backend, layout = cache.get("ioBackend", "Kernel"), cache.get("layout", "PageFirst")
    resolved = {
        ("Direct", "PageFirst"): ("Direct", "PageFirstDirect"),
        ("Kernel", "PageFirstDirect"): ("Direct", "PageFirstDirect"),
    }.get((backend, layout))
    if resolved is not None:
        cache["ioBackend"], cache["layout"] = resolved
        message = f"{backend} with {layout} becomes {resolved[0]} with {resolved[1]}, as SGLang would make it at start"
        findings.append(finding("import-changed", "spec.hiCache.layout", message))


def _role(draft: RoleDraft, gpus_per_node: int | None, findings: list[Finding]) -> Spec:
    own = dict(draft.own)
    tensor, nodes = own.pop("tensor", None), own.get("nodes", 1)
    if tensor is None:
        unread = any(f.path == draft.path("--tp-size") for f in draft.findings)
        if not unread:
            message = "not given: SGLang's default of one GPU is taken"
            findings.append(finding("import-changed", draft.path("--tp-size"), message))
        tensor = nodes
    if "nodes" not in own and gpus_per_node is not None and tensor > gpus_per_node:
        nodes = -(-tensor // gpus_per_node)
        own["nodes"] = nodes
    if tensor % nodes:
        message = f"{tensor} ranks cannot be spread evenly over {nodes} nodes"
        findings.append(finding("import-unsupported", draft.path("--tp-size"), message))
    role: Spec = {"gpus": max(1, tensor // nodes)}
    for path, value in own.items():
        put(role, f"role.{path}", value)
    return role


def _words(uses: list[FlagUse]) -> list[str]:
    return [word for use in uses for word in (use.flag, *use.values)]


def _common_arguments(drafts: Drafts, spec: Spec) -> None:
    prefill, decode = drafts[Role.PREFILL].extra, drafts[Role.DECODE].extra
    common = [use for use in prefill if use in decode]
    if common:
        spec.setdefault("engine", {})["extraArgs"] = _words(common)
    for role, uses in ((Role.PREFILL, prefill), (Role.DECODE, decode)):
        rest = [use for use in uses if use not in common]
        if rest:
            spec[role.value]["extraArgs"] = _words(rest)


def _common_env(drafts: Drafts, spec: Spec) -> None:
    prefill, decode = drafts[Role.PREFILL].env, drafts[Role.DECODE].env
    common = {name for name, value in prefill.items() if decode.get(name) == value}
    if common:
        spec.setdefault("engine", {})["env"] = _entries(prefill, common)
    for role, env in ((Role.PREFILL, prefill), (Role.DECODE, decode)):
        rest = env.keys() - common
        if rest:
            spec[role.value]["env"] = _entries(env, rest)


def _entries(env: dict[str, str], names: set[str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in env.items() if name in names]
