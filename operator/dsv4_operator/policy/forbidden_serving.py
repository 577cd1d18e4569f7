"""Flags and variables about processes, addresses and doors that the operator's pods never take."""

from __future__ import annotations

from typing import Final

from dsv4_operator.policy.forbidden import Forbidden

ROWS: Final[tuple[Forbidden, ...]] = (
    Forbidden(
        id="role-switch",
        title="Switching roles at run time",
        flags=("--enable-pd-role-switch",),
        why="lets a pod change between prefill and decode, but the role decides its ports, labels and canary",
        remedy="remove it and change spec.prefill.replicas and spec.decode.replicas instead",
        source="sglang 0.5.23 srt/arg_groups/pd_disaggregation_hook.py",
        explanation=(
            "From 0.5.21 SGLang can flip a server's role. It refuses expert parallelism, MoE all-to-all, pipeline "
            "parallelism, decode context parallelism and speculation, which leaves little for V4."
        ),
    ),
    Forbidden(
        id="pipeline-parallel",
        title="Pipeline parallelism",
        flags=("--pp-size", "--pipeline-parallel-size"),
        why=(
            "splits layers over stages: V4 gave nonsense under it, HiCache refuses its state pools, and overlap is "
            "turned off"
        ),
        remedy="remove it and use gpus, nodes and parallelism.tensor of the role",
        source="sgl-project/sglang #25662, #29106",
        explanation=(
            "Reports speak of bracket salad (#25662) and of a start-up error with HiCache, whose sliding-window pool "
            "was sized by the global number of layers (#29106). The path from prefill to decode was not audited "
            "with several microbatches in flight."
        ),
    ),
    Forbidden(
        id="parser-flags",
        title="Parsers of another model",
        flags=("--tool-call-parser", "--reasoning-parser"),
        why=(
            "is set by the operator to V4's parser; another one leaks tool calls as text, and mixed ones stop the "
            "engine"
        ),
        remedy="remove it",
        source="sglang 0.5.23 srt/parser/reasoning_parser.py, srt/function_call",
        explanation=(
            "deepseekv4 and deepseek-v4 are rendered on both roles. In 0.5.23 one DeepSeek parser beside another "
            "family's raises at start. The canary reads replies as V4 writes them."
        ),
    ),
    Forbidden(
        id="host-address",
        title="The address that an engine listens on",
        flags=("--host", "--port", "--enable-http-worker-reuseport", "--fastapi-root-path"),
        why=(
            "changes where the engine listens or under which path: router, canary and the bootstrap registry, which "
            "binds to the same host, would not find it"
        ),
        remedy="remove it, since pods listen on all addresses and ports are fixed by role",
        source="sglang 0.5.23 srt/arg_groups/fields/serving.py, srt/disaggregation/common/conn.py",
        explanation=(
            "SGLang listens on 127.0.0.1 by default and binds the bootstrap registry to the same address, so decode "
            "could not reach it. The operator renders 0.0.0.0, and the pod's address as SGLANG_HOST_IP for what ranks "
            "tell each other."
        ),
    ),
    Forbidden(
        id="multi-node-address",
        title="Addresses and ranks of several nodes",
        flags=("--dist-init-addr", "--nccl-init-addr", "--nnodes", "--node-rank", "--nccl-port"),
        why=(
            "places ranks on nodes by hand: SGLang does not refuse a wrong or missing address, it waits for ever, and "
            "prefill registers under it"
        ),
        remedy="remove it and set nodes of the role",
        source="sglang 0.5.23 srt/arg_groups/fields/parallel.py, srt/disaggregation/common/conn.py",
        explanation=(
            "A missing --dist-init-addr with two nodes is not refused at start. Prefill on several nodes registers its "
            "bootstrap server at the host part of that address. The operator takes it from the LeaderWorkerSet."
        ),
    ),
    Forbidden(
        id="attention-dp-flags",
        title="Attention data parallelism by flag",
        flags=(
            "--dp-size",
            "--data-parallel-size",
            "--dp",
            "--enable-dp-attention",
            "--attn-dp-size",
            "--attention-data-parallel-size",
        ),
        why="has another name and meaning by release: --attn-dp-size from 0.5.22, --dp-size with a switch before",
        remedy="remove it and set parallelism.attentionData of the role",
        source="sglang 0.5.22 srt/arg_groups/fields/parallel.py",
        explanation=(
            "Up to 0.5.21 attention data parallelism is --dp-size N with --enable-dp-attention; without the switch the "
            "same number means N copies of the model. From 0.5.22 it is --attn-dp-size, the old pair goes away after "
            "2026. The operator renders what the release knows, and its parallelism checks need the number."
        ),
    ),
    Forbidden(
        id="api-key-flag",
        title="An API key on engines",
        flags=("--api-key", "--admin-api-key"),
        why=(
            "makes engines refuse what carries no key: the canary, and decode's request to prefill when a request is "
            "retracted (0.5.22 and later), and a key in an argument shows in the pod"
        ),
        remedy="remove it and use spec.router.apiKeySecretRef",
        source="sglang 0.5.23 srt/disaggregation/decode.py (re-bootstrap of retracted requests)",
        explanation=(
            "Under memory pressure decode of 0.5.22 and later sends a retracted request back to prefill's HTTP port, "
            "without a key, so every such request would fail with 401. Users authenticate at the router, which is the "
            "only door."
        ),
    ),
    Forbidden(
        id="engine-tls",
        title="TLS on engines",
        flags=(
            "--ssl-keyfile",
            "--ssl-certfile",
            "--ssl-ca-certs",
            "--ssl-keyfile-password",
            "--enable-ssl-refresh",
            "--enable-http2",
        ),
        why="makes the engine speak another protocol: router, canary and decode's re-prefill use plain HTTP/1.1",
        remedy="remove it and end TLS before the router",
        source="sglang 0.5.23 srt/entrypoints/http_server.py, srt/disaggregation/decode.py",
        explanation=(
            "Nothing between router and engines can be told to use TLS, so no pod would become Ready. Encrypt at the "
            "ingress, or between nodes with the cluster's network."
        ),
    ),
    Forbidden(
        id="grpc-mode",
        title="Engines without HTTP",
        flags=("--grpc-mode", "--smg-grpc-mode", "--sidecar", "--skip-tokenizer-init", "--encoder-only"),
        variables=("SGLANG_RUST_SERVER",),
        why=(
            "replaces the HTTP server that router and canary talk to, or takes from it what they need: no pod would "
            "become Ready"
        ),
        remedy="remove it",
        source="sglang 0.5.23 srt/entrypoints, srt/arg_groups/pd_disaggregation_hook.py (SGLANG_RUST_SERVER)",
        explanation=(
            "The router sends chat requests over HTTP to both roles, and so does the canary, with text. The Rust "
            "server also moves the bootstrap registry to the API port."
        ),
    ),
    Forbidden(
        id="gpu-placement",
        title="Choosing GPUs by number",
        flags=("--base-gpu-id", "--gpu-id-step"),
        when=lambda argument: argument.value.strip() not in ("0" if argument.name == "--base-gpu-id" else "1"),
        why="counts GPUs of the node, but a pod sees only its own, numbered from 0: ranks would find no device",
        remedy="remove it, since the device plugin gives each pod its own GPUs",
        source="sglang 0.5.23 srt/arg_groups/fields/device.py",
        explanation=(
            "Scripts that start prefill and decode on one machine give decode --base-gpu-id 4. In Kubernetes each pod "
            "has its GPUs to itself."
        ),
    ),
)

RULES: Final = tuple(row.rule() for row in ROWS)
