"""Spec fields about one role's pods."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from dsv4_operator.api.base import ApiModel, CelRule, ForeignObject, ListSet, ObjectName, Quantity, ResourceName
from dsv4_operator.api.v1alpha1.arguments import ArgList, EnvList

StringMap = Annotated[dict[str, Annotated[str, Field(max_length=1024)]], Field(max_length=64)]


class ParallelismSpec(ApiModel):
    """How one engine is spread over GPUs."""

    tensor: Annotated[int, Field(ge=1, le=128)] | None = None
    """Tensor-parallel size; unset: gpus times nodes."""
    attention_data: Annotated[int, Field(ge=1, le=128)] = 1
    """Attention data-parallel size; must divide the tensor size."""
    expert: Annotated[int, Field(ge=1, le=128)] | None = None
    """Expert-parallel size; unset: SGLang's choice."""


_CEL_TENSOR = "(has({0}.parallelism.tensor) ? {0}.parallelism.tensor : {0}.gpus * {0}.nodes)"


def cel_attention_tensor(role: str) -> str:
    """CEL for `RoleSpec.attention_tensor` of the role at path `role`."""
    return f"{_CEL_TENSOR.format(role)} / {role}.parallelism.attentionData"


class RoleSpec(ApiModel):
    """Pods of one role."""

    cel_rules = (
        CelRule(
            name="tensor-fits-gpus",
            rule="!has(self.parallelism.tensor) || self.parallelism.tensor <= self.gpus * self.nodes",
            holds=lambda role: role.tensor <= role.gpus * role.nodes,
            message="every tensor-parallel rank needs a GPU of its own; "
            "lower parallelism.tensor to gpus times nodes, or raise these",
            field_path=".parallelism.tensor",
        ),
        CelRule(
            name="tensor-spreads-over-nodes",
            rule="!has(self.parallelism.tensor) || self.parallelism.tensor % self.nodes == 0",
            holds=lambda role: role.tensor % role.nodes == 0,
            message="every node runs the same number of ranks; make parallelism.tensor a multiple of nodes",
            field_path=".parallelism.tensor",
        ),
        CelRule(
            name="attention-data-divides-tensor",
            rule=f"{_CEL_TENSOR.format('self')} % self.parallelism.attentionData == 0",
            holds=lambda role: role.tensor % role.parallelism.attention_data == 0,
            message="SGLang splits the tensor-parallel ranks evenly into attention groups; "
            "make parallelism.attentionData a divisor of parallelism.tensor (gpus times nodes when unset)",
            field_path=".parallelism.attentionData",
        ),
        CelRule(
            name="expert-divides-tensor",
            rule=f"!has(self.parallelism.expert) || {_CEL_TENSOR.format('self')} % self.parallelism.expert == 0",
            holds=lambda role: role.parallelism.expert is None or role.tensor % role.parallelism.expert == 0,
            message="SGLang splits the tensor-parallel ranks evenly into expert groups; "
            "make parallelism.expert a divisor of parallelism.tensor (gpus times nodes when unset)",
            field_path=".parallelism.expert",
        ),
    )

    replicas: Annotated[int, Field(ge=1, le=256, json_schema_extra={"format": "int32"})] = 1
    """Engines of this role in one unit."""
    gpus: Annotated[int, Field(ge=1, le=16, json_schema_extra={"format": "int32"})] = 4
    """GPUs per node."""
    nodes: Annotated[int, Field(ge=1, le=16, json_schema_extra={"format": "int32"})] = 1
    """Nodes per engine; more than one needs the LeaderWorkerSet API."""
    parallelism: ParallelismSpec = Field(default_factory=ParallelismSpec)
    """How one engine is spread over its GPUs."""
    cpu: Quantity | None = None
    """CPU request of the engine."""
    memory: Quantity | None = None
    """Memory request and limit of the engine; must hold HiCache's host pools and sharedMemory."""
    shared_memory: Quantity = "32Gi"
    """Size limit of /dev/shm; counts against the memory limit."""
    extra_args: ArgList = []
    """More arguments, this role alone. Flags that the operator owns are refused by name."""
    env: EnvList = []
    """More environment variables, this role alone."""
    node_selector: StringMap = {}
    """Node labels that the pods require, beside the accelerator's."""
    tolerations: Annotated[list[ForeignObject], Field(max_length=32)] = []
    """Tolerations of the pods."""
    affinity: ForeignObject | None = None
    """Affinity of the pods; the accelerator's node affinity is added to it."""
    priority_class_name: Annotated[str, Field(max_length=253)] = ""
    """PriorityClass of the pods."""
    pod_template: ForeignObject | None = None
    """Overlay on the pod template (strategic merge by name); it may add, but not undo what makes the pair safe."""

    @property
    def tensor(self) -> int:
        """Tensor-parallel size: as given, else all GPUs of all nodes of one engine."""
        return self.parallelism.tensor or self.gpus * self.nodes

    @property
    def attention_tensor(self) -> int:
        """Ranks that share one attention group, which is what the KV transfer divides between the roles."""
        return self.tensor // self.parallelism.attention_data


class Architecture(StrEnum):
    """GPU generations by compute capability."""

    BLACKWELL = "Blackwell"
    SM100 = "SM100"
    SM103 = "SM103"
    SM120 = "SM120"


class AcceleratorSpec(ApiModel):
    """Which GPUs."""

    architecture: Architecture = Architecture.BLACKWELL
    """Nodes are chosen by the GPU feature label nvidia.com/gpu.compute.major (10 or 12) and, for one SM, .minor."""
    resource_name: ResourceName = "nvidia.com/gpu"
    """Extended resource that the device plugin offers."""


class RdmaResource(ApiModel):
    """RDMA devices from a device plugin."""

    name: ResourceName
    """Extended resource, such as rdma/hca_shared_devices_a."""
    count: Annotated[int, Field(ge=1, le=64, json_schema_extra={"format": "int32"})] = 1
    """How many per pod."""


class ComputeDomainMode(StrEnum):
    """How pods of a pair get multi-node NVLink."""

    NONE = "None"
    CREATE = "Create"
    EXISTING = "Existing"


class ComputeDomainSpec(ApiModel):
    """NVIDIA ComputeDomain for multi-node NVLink."""

    cel_rules = (
        CelRule(
            name="compute-domain-name",
            rule="has(self.name) == (self.mode == 'Existing')",
            holds=lambda domain: (domain.name is not None) == (domain.mode is ComputeDomainMode.EXISTING),
            message="name belongs to mode Existing and is required there; set both or neither "
            "(mode Create makes a name of its own)",
            field_path=".name",
        ),
    )

    mode: ComputeDomainMode = ComputeDomainMode.NONE
    """None, Create one for this deployment, or use an Existing one."""
    name: ObjectName | None = None
    """Name of the existing ComputeDomain."""


_IPC_TRANSPORTS = ("all", "cuda", "cuda_ipc", "sm", "shm", "sysv")


class NetworkSpec(ApiModel):
    """How KV travels from prefill to decode."""

    cel_rules = (
        CelRule(
            name="host-ipc-has-a-use",
            rule="!self.hostIPC || !has(self.ucxTransports) || size(self.ucxTransports) == 0"
            f" || self.ucxTransports.exists(t, t in [{', '.join(repr(t) for t in _IPC_TRANSPORTS)}])",
            holds=lambda net: (
                not net.host_ipc
                or not net.ucx_transports
                or any(transport in _IPC_TRANSPORTS for transport in net.ucx_transports)
            ),
            message="hostIPC opens the node's IPC namespace to the pods and none of ucxTransports uses it; "
            "add cuda_ipc or remove hostIPC",
            field_path=".hostIPC",
        ),
    )

    transport: Literal["NIXL"] = "NIXL"
    """Transfer engine; NIXL alone."""
    backend: Literal["UCX"] = "UCX"
    """NIXL backend; UCX alone. Part of the fingerprint: workers of different backends cannot talk."""
    devices: Annotated[
        list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$", max_length=64)]],
        Field(max_length=32),
        ListSet(),
    ] = []
    """HCA names without port, such as mlx5_0; empty: UCX chooses."""
    rdma_resource: RdmaResource | None = None
    """RDMA devices to ask for; without them UCX falls back to TCP silently."""
    ucx_transports: Annotated[
        list[Annotated[str, Field(pattern=r"^[a-z0-9_]+$", max_length=32)]],
        Field(max_length=16),
        ListSet(),
    ] = []
    """UCX_TLS; empty: rc, cuda_copy, cuda_ipc, tcp with RDMA and cuda_copy, cuda_ipc, tcp without."""
    host_network: bool = False
    """Use the node's network; ports differ by role, so one prefill and one decode fit on a node."""
    host_ipc: bool = Field(default=False, alias="hostIPC")
    """Share the node's IPC namespace, which CUDA IPC between pods of one node needs."""
    checksum: bool = False
    """Verify transferred KV (SGLang 0.5.23 alone, with the gated image)."""
    compute_domain: ComputeDomainSpec = Field(default_factory=ComputeDomainSpec)
    """Multi-node NVLink."""
