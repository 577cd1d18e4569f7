"""Runs a soak as a Job: create, follow, bring the results back, clean up, also on Ctrl-C."""

from __future__ import annotations

import argparse
import base64
import contextlib
import gzip
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from dsv4_canary.soak.markdown import summary_rows
from dsv4_canary.soak.page import page
from dsv4_canary.soak.settings import SettingsError, SoakSettings, check, parse_endpoint
from dsv4_canary.soak.verdict import EXIT_INTERRUPTED, EXIT_UNUSABLE
from dsv4_operator.cli.errors import UnreadableError
from dsv4_operator.cli.kubectl import ClusterError, Kubectl, connect
from dsv4_operator.cli.output import warn
from dsv4_operator.desired import soak_job
from dsv4_operator.desired.soak_job import LABEL_RUN, SoakJob

START_SECONDS: Final = 300.0
"""Longest time until the pod runs: scheduling and the pull of a small image."""
_POLL: Final = 1.0


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a soak in the cluster brought. `files`: by name, as the ConfigMap held them, unpacked."""

    status: int
    files: dict[str, bytes] = field(default_factory=dict)
    left_out: str = ""
    interrupted: bool = False
    """Stopped from here, by Ctrl-C; a status of 130 alone may mean that somebody else deleted the pod."""

    def report(self, tag: str) -> dict[str, Any] | None:
        """The report, None where there is none."""
        raw = self.files.get(f"{tag}.json")
        return None if raw is None else json.loads(raw)


@dataclass(frozen=True, slots=True)
class Ended:
    """What the command says at its end."""

    status: int
    text: str = ""


def new_run() -> str:
    """A name for one run of a command, for labels and object names."""
    return secrets.token_hex(3)


@contextlib.contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """SIGTERM and a closed terminal (SIGHUP) do what Ctrl-C does: clean up, then end. nohup stays what it is."""

    def interrupt(number: int, _frame: object) -> None:
        if number == signal.SIGHUP:
            # Shell and kernel both send one, and the second must not stop the tidying.
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    old = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    caught = [number for number, handler in old.items() if handler is not signal.SIG_IGN]
    for number in caught:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, old[number])


def run_here(args: argparse.Namespace) -> Ended:
    """`dsv4ctl soak --in-cluster`. Raises UnreadableError."""
    image = args.image or os.environ.get("DSV4CTL_CANARY_IMAGE")
    if not image:
        raise UnreadableError("--image: the canary image is not known; give it, or set DSV4CTL_CANARY_IMAGE")
    check_load({**vars(args), "endpoint": args.endpoint})
    secret, _, key = (args.api_key_secret or "").partition("/")
    run = new_run()
    job = SoakJob(
        name=soak_job.object_name(args.tag, run),
        run=run,
        tag=args.tag,
        image=image,
        arguments=soak_job.arguments(vars(args)),
        api_key_secret=secret or None,
        api_key_key=key or "key",
        volume_claim=args.volume_claim,
    )
    folder = Path(args.out)
    if (folder / f"{args.tag}.json").exists():
        raise UnreadableError(f"--tag = {args.tag!r}: {folder / args.tag}.json exists; give another tag or --out")
    _make_folder(folder)
    try:
        with termination_as_interrupt():
            result = run_job(connect(args), job, keep=args.keep, quiet=args.quiet)
    except ClusterError as error:
        warn(f"soak: {error}")
        return Ended(EXIT_UNUSABLE)
    paths = store(result, args.tag, folder)
    report = result.report(args.tag)
    if report is None:
        warn("soak: brought no report" + ("" if args.quiet else "; its log is above"))
        return Ended(result.status or EXIT_UNUSABLE)
    if args.output == "json":
        sys.stdout.write(json.dumps(report, ensure_ascii=False, indent=2) + "\n")
        return Ended(result.status)
    lines = ["", f"{report['verdict'].upper()}: {report['sentence']}"]
    lines += [f"  {name:44}{value}" for name, value in summary_rows(report)]
    lines += [f"  note: {note}" for note in report["notes"]]
    if result.left_out:
        lines.append(f"  note: too large for a ConfigMap and left out: {result.left_out}")
    return Ended(result.status, "\n".join([*lines, "", "files: " + ", ".join(map(os.fspath, paths)), ""]))


_LOAD: Final = ("sessions", "rounds", "ctx", "shared_ctx", "share", "max_tokens", "timeout", "seed", "baseline",
                "concurrency", "reask", "give_up", "max_failed")  # fmt: skip


def check_load(values: Mapping[str, Any]) -> None:
    """That a soak takes these options, before GPUs or a cluster are asked for anything. Raises UnreadableError."""
    given = {name: values[name] for name in _LOAD if values.get(name) is not None}
    try:
        endpoint = parse_endpoint(values.get("endpoint", "http://arm"))
        check(SoakSettings(endpoint=endpoint, tag=values.get("tag", "arm"), model="", **given))
    except SettingsError as error:
        raise UnreadableError(str(error)) from None


def _make_folder(folder: Path) -> None:
    """Before the load: the results are removed from the cluster whether they can be written or not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnreadableError(f"--out = {folder}: cannot be made ({error.strerror}); choose another place") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UnreadableError(f"--out = {folder}: cannot be written; choose another place")


def store(result: JobResult, tag: str, folder: Path) -> list[Path]:
    """Write the files, and the page made of the report. Raises UnreadableError."""
    files = dict(result.files)
    report = result.report(tag)
    if report is not None:
        files[f"{tag}.html"] = page(report).encode("utf-8", "backslashreplace")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        raise UnreadableError(f"--out = {folder}: cannot be written ({error.strerror})") from None
    return [folder / name for name in files]


def run_job(kubectl: Kubectl, job: SoakJob, *, keep: bool = False, quiet: bool = False) -> JobResult:
    """Run a soak to its end and remove what was made. On Ctrl-C the soak is stopped and its part is brought.

    Raises ClusterError.
    """
    try:
        owner = kubectl.create(soak_job.results_object(job))["metadata"]["uid"]
        for obj in soak_job.other_objects(job, owner):
            kubectl.create(obj)
        if not quiet:
            warn(f"soak: Job {kubectl.namespace()}/{job.name}, image {job.image}; Ctrl-C stops it")
        interrupted = False
        try:
            status = _follow(kubectl, job, quiet=quiet)
        except KeyboardInterrupt:
            interrupted = True
            warn("soak: stopping the Job and fetching what it has; Ctrl-C again gives that up")
            kubectl.delete("job", job.name, wait_seconds=soak_job.GRACE_SECONDS + 15)
            status = EXIT_INTERRUPTED
        return replace(_results(kubectl, job, status), interrupted=interrupted)
    finally:
        if keep:
            warn(f"soak: kept; kubectl delete configmap {job.name} removes all")
        else:
            _remove(kubectl, job)


def _follow(kubectl: Kubectl, job: SoakJob, *, quiet: bool) -> int:
    pods = _await_start(kubectl, job)
    name = pods[0]["metadata"]["name"]
    while True:
        if quiet:
            time.sleep(_POLL)
        else:
            with kubectl.following("logs", "-f", name, "-c", soak_job.CONTAINER, to=sys.stderr) as logs:
                while logs.poll() is None:
                    time.sleep(_POLL)
        pod = kubectl.get("pod", name)
        if pod is None:
            # On SIGTERM the soak has published what it had, also when the Job's deadline or a drain ended it.
            held = (kubectl.get("configmap", job.name) or {}).get("data") or {}
            if held.get("exit-status", "").isdigit():
                warn(f"soak: pod {name} was ended from outside; what it had is brought")
                return int(held["exit-status"])
            raise ClusterError(f"pod {name}: is gone; its node was drained, or somebody deleted it")
        status = soak_job.finished(pod)
        if status is not None:
            return status
        if (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded"):
            reason = pod["status"].get("message") or pod["status"].get("reason") or "no reason given"
            raise ClusterError(f"pod {name}: ended without a result: {reason}")
        time.sleep(_POLL)


def _await_start(kubectl: Kubectl, job: SoakJob) -> list[dict[str, Any]]:
    deadline = time.monotonic() + START_SECONDS
    while True:
        pods = kubectl.listed("pods", f"{LABEL_RUN}={job.run}")
        if any(soak_job.started(pod) for pod in pods):
            return pods
        if time.monotonic() >= deadline:
            why = soak_job.held_back(pods, kubectl.get("job", job.name)) or "no reason is known"
            raise ClusterError(f"Job {job.name}: did not start within {START_SECONDS:.0f} s: {why}")
        time.sleep(_POLL)


def _results(kubectl: Kubectl, job: SoakJob, status: int) -> JobResult:
    found = kubectl.get("configmap", job.name)
    if found is None:
        raise ClusterError(f"ConfigMap {job.name}: is gone, and the results with it")
    data, binary = found.get("data") or {}, found.get("binaryData") or {}
    files = {name: text.encode() for name, text in data.items() if name.startswith(f"{job.tag}.")}
    for name, text in binary.items():
        files[name.removesuffix(".gz")] = gzip.decompress(base64.b64decode(text))
    return JobResult(status, files, data.get("left-out", ""))


def _remove(kubectl: Kubectl, job: SoakJob) -> None:
    left = []
    for kind in ("job", "rolebinding", "role", "serviceaccount", "configmap"):
        try:
            kubectl.delete(kind, job.name)
        except ClusterError as error:
            left.append(str(error))
    if left:
        warn(f"soak: could not be removed: {'; '.join(left)}; kubectl delete configmap {job.name}")
