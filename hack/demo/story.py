"""What the demo shows, step by step."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import time
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from metrics_view import show_metrics
from rich.console import Console
from rich.table import Table
from stage import ROOT, SYSTEM_NAMESPACE, DemoError, Stage

SAMPLE = ROOT / "manifests" / "samples" / "demo.yaml"
READY_SECONDS = 300
TOOL = {
    "type": "function",
    "function": {
        "name": "book_table",
        "description": "Book a table in a restaurant.",
        "parameters": {
            "type": "object",
            "properties": {"restaurant": {"type": "string"}, "guests": {"type": "integer"}},
            "required": ["restaurant", "guests"],
        },
    },
}


def play(stage: Stage, console: Console) -> None:
    """All steps; raises DemoError with the step's own explanation."""
    _install(stage, console)
    _apply(stage, console)
    _tool_call(stage, console)
    _toggle(stage, console)
    _new_generation(stage, console)
    _tool_call(stage, console)
    console.rule("[bold]6. the canaries, as Prometheus sees them")
    show_metrics(stage, console)


def _install(stage: Stage, console: Console) -> None:
    console.rule("[bold]2. the operator, with helm")
    values = [argument for value in stage.image_values for argument in ("--set", value)]
    chart = str(ROOT / "charts" / "dsv4-operator")
    try:
        _upgrade(stage, chart, values)
    except DemoError as error:
        log = stage.run_kubectl("-n", SYSTEM_NAMESPACE, "logs", "deploy/dsv4-operator", "--tail", "5", check=False)
        raise DemoError(f"{error}\nthe operator's last words:\n{log}") from None
    console.print(stage.run_kubectl("-n", SYSTEM_NAMESPACE, "get", "pods").rstrip())


def _upgrade(stage: Stage, chart: str, values: list[str]) -> None:
    stage.run_helm(
        "upgrade", "--install", "dsv4-operator", chart, "-n", SYSTEM_NAMESPACE, "--create-namespace", "--wait",
        "--timeout", "90s", *values,
    )  # fmt: skip


def _apply(stage: Stage, console: Console) -> None:
    console.rule("[bold]3. one DSV4Deployment")
    console.print(f"kubectl apply -f {SAMPLE.relative_to(ROOT)}")
    if stage.get("namespace", stage.namespace) is None:
        stage.run_kubectl("create", "namespace", stage.namespace)
    stage.run_kubectl("-n", stage.namespace, "apply", "-f", str(SAMPLE))
    _wait_settled(stage, console)
    console.print(stage.run_kubectl("-n", stage.namespace, "get", "dsv4,pods").rstrip())


def _wait_settled(stage: Stage, console: Console, switched_from: str | None = None) -> None:
    """Print what changes until the object is Ready and nothing is in progress."""
    deadline, shown = time.monotonic() + READY_SECONDS, set[str]()
    started = time.monotonic()
    while time.monotonic() < deadline:
        obj = stage.get("dsv4", "demo")
        status = (obj or {}).get("status", {})
        conditions = {c["type"]: c for c in status.get("conditions", [])}
        lines = [f"pod {line}" for line in _pod_lines(stage)]
        lines += [f"{kind}: {conditions[kind]['message']}" for kind in ("Progressing", "Ready") if kind in conditions]
        for line in lines:
            if line not in shown:
                shown.add(line)
                console.print(f"  [dim]{time.monotonic() - started:5.1f}s[/] {line}", soft_wrap=True)
        current = obj is not None and status.get("observedGeneration") == obj["metadata"]["generation"]
        ready = conditions.get("Ready", {}).get("status") == "True"
        quiet = conditions.get("Progressing", {}).get("status") == "False"
        generations = status.get("generations", [])
        switched = switched_from is None or all(g["fingerprint"] != switched_from for g in generations)
        if current and ready and quiet and switched and len(generations) == 1:
            return
        time.sleep(0.5)
    raise DemoError(
        f"the deployment is not settled after {READY_SECONDS} s; look with: KUBECONFIG={stage.kubeconfig} "
        f"kubectl -n {stage.namespace} describe dsv4 demo"
    )


def _pod_lines(stage: Stage) -> list[str]:
    pods = (stage.get("pods") or {}).get("items", [])
    lines = []
    for pod in pods:
        role = pod["metadata"]["labels"].get("serving.dsv4.dev/role", "")
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
        state = "leaving" if "deletionTimestamp" in pod["metadata"] else pod["status"]["phase"]
        lines.append(f"{role:8s} {pod['metadata']['name']}  {state}{', Ready' if ready and state != 'leaving' else ''}")
    return lines


@contextlib.contextmanager
def forward(stage: Stage, target: str, port: int) -> Iterator[str]:
    """`kubectl port-forward`: the URL at which `target` answers meanwhile."""
    command = [str(stage.kubectl), "-n", stage.namespace, "port-forward", target, f":{port}", "--address", "127.0.0.1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=stage.environment()
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"127\.0\.0\.1:(\d+)", line)
            if found is None:
                raise DemoError(f"kubectl port-forward {target} failed: {line.strip()}")
            yield f"http://127.0.0.1:{found.group(1)}"
        finally:
            process.terminate()


def _tool_call(stage: Stage, console: Console) -> None:
    console.rule("[bold]a tool call through the stable Service")
    question = 'Call the tool book_table exactly once with restaurant "Luna Rossa" and guests 4.'
    body: dict[str, Any] = {
        "model": "deepseek-v4-simulated",
        "messages": [{"role": "user", "content": question}],
        "tools": [TOOL],
        "tool_choice": "auto",
        "temperature": 0,
        "max_tokens": 512,
    }
    console.print(f"user:      {question}")
    with forward(stage, "service/demo", 80) as url:
        answer = _post(f"{url}/v1/chat/completions", body)
    message = answer["choices"][0]["message"]
    calls = message.get("tool_calls") or []
    if len(calls) != 1:
        raise DemoError(f"expected one tool call, got {json.dumps(message)}")
    function = calls[0]["function"]
    console.print(f"assistant: [bold green]{function['name']}({function['arguments']})[/]")
    console.print(f"           finish_reason={answer['choices'][0]['finish_reason']}, usage={answer.get('usage')}")


def _post(url: str, body: dict[str, Any]) -> Any:
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=60) as response:
            return json.load(response)
    except HTTPError as error:
        raise DemoError(f"{url} answered {error.code}: {error.read()[:300]!r}") from error
    except (TimeoutError, OSError) as error:
        raise DemoError(f"{url} did not answer: {error}") from error


def _patch(stage: Stage, console: Console, spec: dict[str, Any]) -> None:
    patch = json.dumps({"spec": spec})
    console.print(f"kubectl patch dsv4 demo --type merge -p '{patch}'")
    stage.run_kubectl("-n", stage.namespace, "patch", "dsv4", "demo", "--type", "merge", "-p", patch)


def _uids(stage: Stage) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for pod in (stage.get("pods") or {}).get("items", []):
        if "deletionTimestamp" in pod["metadata"]:
            continue
        role = pod["metadata"]["labels"].get("serving.dsv4.dev/role", "")
        found.setdefault(role, set()).add(pod["metadata"]["uid"])
    return found


def _reasons(stage: Stage) -> set[str]:
    """Messages of events that say why pods are replaced."""
    events = (stage.get("events") or {}).get("items", [])
    return {event["message"] for event in events if event["reason"] in ("RollingRole", "NewGeneration")}


def _what_rolled(stage: Stage, console: Console, before: dict[str, set[str]], known: set[str]) -> None:
    after = _uids(stage)
    why = _reasons(stage) - known or known  # a repeated demo repeats its events, and those are not posted twice
    table = Table("role", "pods", "why", title="what was replaced", title_justify="left")
    for role in ("prefill", "decode", "router"):
        kept = before.get(role, set()) == after.get(role, set())
        mine = sorted(text for text in why if text.startswith((f"replacing {role} ", "generation ")))
        table.add_row(role, "kept" if kept else "[bold]replaced[/]", "" if kept else "\n".join(mine))
    console.print(table)


def _toggle(stage: Stage, console: Console) -> None:
    console.rule("[bold]4. HiCache on: one role rolls")
    before, known = _uids(stage), _reasons(stage)
    _patch(stage, console, {"hiCache": {"enabled": True}})
    _wait_settled(stage, console)
    _what_rolled(stage, console, before, known)


def _new_generation(stage: Stage, console: Console) -> None:
    console.rule("[bold]5. index-K from FP8 to FP4: a new generation, and no pair ever mixes the two")
    before, known = _uids(stage), _reasons(stage)
    old = stage.get("dsv4", "demo")["status"]["fingerprint"]
    _patch(stage, console, {"indexK": {"dtype": "FP4"}})
    _wait_settled(stage, console, switched_from=old)
    _what_rolled(stage, console, before, known)
    new = stage.get("dsv4", "demo")["status"]["fingerprint"]
    console.print(f"fingerprint {old} -> {new}; the old generation is gone")
