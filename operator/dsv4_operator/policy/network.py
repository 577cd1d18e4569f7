"""Rules about the network between the roles."""

from __future__ import annotations

from collections.abc import Iterator

from dsv4_operator.engine.releases import ReleaseRange
from dsv4_operator.policy.finding import Action, Remark, Rule
from dsv4_operator.policy.subject import Subject

_CUDA = ("cuda", "cuda_copy", "cuda_ipc", "all")
_RDMA = ("rc", "rc_x", "rc_v", "rc_mlx5", "dc", "dc_x", "ud", "ib")
_PARAMS = "SGLANG_DISAGGREGATION_NIXL_BACKEND_PARAMS"


def _without_cuda(subject: Subject) -> Iterator[Remark]:
    given = subject.spec.network.ucx_transports
    if given and not any(transport in _CUDA for transport in given):
        yield (
            "spec.network.ucxTransports",
            "no transport of the list can read GPU memory, which is where KV is, so the transfer fails or dies; "
            "use cuda_copy beside them, or leave the field out",
        )


def _rdma_without_device(subject: Subject) -> Iterator[Remark]:
    network = subject.spec.network
    wants = bool(network.devices) or any(transport in _RDMA for transport in network.ucx_transports)
    if wants and network.rdma_resource is None:
        yield (
            "spec.network.rdmaResource",
            "RDMA is asked for, but the pods request no RDMA device: without one in the container UCX falls back to "
            "TCP silently, 10 to 1,000 times slower; set it to the device plugin's resource, or make sure that the "
            "overlay brings the devices",
        )


def _device_conflict(subject: Subject) -> Iterator[Remark]:
    for variable in subject.sets(_PARAMS):
        if subject.spec.network.devices and "device_list" in (variable.value or ""):
            yield (
                variable.path,
                f"{_PARAMS} has a device_list beside spec.network.devices: where the two differ, the engine refuses to "
                "start; remove the one from the variable",
            )


RULES = (
    Rule(
        id="ucx-without-cuda",
        action=Action.WARN,
        title="UCX without a CUDA transport",
        source="ai-dynamo/nixl #366, sglang 0.5.23 srt/disaggregation/nixl/conn.py",
        explanation=(
            "UCX moves data out of GPU memory with cuda_copy, and inside a node with cuda_ipc. Its list of transports "
            "is exclusive: what is not named is not used. With GPUDirect some lists may do without; say so by leaving "
            "the warning be."
        ),
        check=_without_cuda,
    ),
    Rule(
        id="rdma-without-device",
        action=Action.WARN,
        title="RDMA without an RDMA device",
        source="ai-dynamo/dynamo #1314, llm-d/llm-d #2371",
        explanation=(
            "A pod sees InfiniBand or RoCE devices when it requests them from a device plugin. Reports measured 1.8 s "
            "instead of 0.16 ms for what went over TCP unnoticed."
        ),
        check=_rdma_without_device,
    ),
    Rule(
        id="nixl-device-conflict",
        action=Action.REFUSE,
        title="Devices named twice",
        source="sglang 0.5.23 srt/disaggregation/nixl/conn.py",
        releases=ReleaseRange.of("0.5.23"),
        explanation=(
            "SGLang makes device_list of the UCX backend from the devices, and raises when the backend parameters have "
            "another one. Allow the rule where both say the same."
        ),
        check=_device_conflict,
    ),
)
