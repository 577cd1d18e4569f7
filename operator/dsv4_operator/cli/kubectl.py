"""The cluster through kubectl: contexts, logins and proxies are then those that the user has set up already."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

from dsv4_operator.cli.errors import UnreadableError
from dsv4_operator.desired.soak_job import LABEL_RUN

_TIMEOUT: Final = 60.0
"""Seconds for one request; kubectl itself would wait for ever for an API server that hangs."""
_TRIES: Final = 5
_BUSY: Final = (
    "connection refused",
    "i/o timeout",
    "TLS handshake timeout",
    "EOF",
    "connection reset",
    "etcdserver: request timed out",
    "the server is currently unable",
    "context deadline exceeded",
    "too many requests",
)
"""Texts of answers after which asking again helps."""


class ClusterError(Exception):
    """What the cluster refused or could not do: one line for the user."""


class AlreadyThereError(ClusterError):
    """An object of that name exists."""


def connect(args: argparse.Namespace) -> Kubectl:
    """The cluster that the options name.

    Raises:
        UnreadableError: when there is no kubectl.
    """
    program = os.environ.get("KUBECTL") or shutil.which("kubectl")
    if program is None:
        raise UnreadableError("kubectl: is not on the PATH; install it, or name it by the variable KUBECTL")
    words = [program]
    for name in ("kubeconfig", "context", "namespace"):
        if getattr(args, name):
            words += [f"--{name}", getattr(args, name)]
    return Kubectl(tuple(words))


@dataclass(frozen=True, slots=True)
class Kubectl:
    """One cluster and namespace. `words`: the program and its connection options."""

    words: tuple[str, ...]

    def namespace(self) -> str:
        """The namespace that requests go to. Raises ClusterError."""
        if "--namespace" in self.words:
            return self.words[self.words.index("--namespace") + 1]
        text = self._run("config", "view", "--minify", "-o", "jsonpath={..namespace}")
        return text.strip() or "default"

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """An object, None when there is none. Raises ClusterError."""
        text = self._run("get", kind, name, "-o", "json", "--ignore-not-found")
        return self._object(text) if text.strip() else None

    def listed(self, kind: str, selector: str) -> list[dict[str, Any]]:
        """Objects with the labels. Raises ClusterError."""
        found = self._object(self._run("get", kind, "-l", selector, "-o", "json")).get("items")
        if not isinstance(found, list):
            raise ClusterError(f"{self.words[0]}: answers a list without items; is it kubectl?")
        return found

    def raw(self, path: str) -> str:
        """The text at a path of the API server, such as a pod's proxy. Raises ClusterError."""
        return self._run("get", "--raw", path)

    def execute(self, pod: str, container: str, *words: str) -> str:
        """What a command in a container prints. Raises ClusterError."""
        return self._run("exec", pod, "-c", container, "--", *words)

    def create(self, obj: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object; never changes one that is somebody else's. Raises AlreadyThereError, ClusterError.

        Where the answer to a first attempt was lost, the object may be there already: the run label tells ours.
        """
        try:
            made = self._object(self._run("create", "-f", "-", "-o", "json", given=json.dumps(obj)))
        except AlreadyThereError:
            found = self.get(obj["kind"], obj["metadata"]["name"])
            mine = (obj["metadata"].get("labels") or {}).get(LABEL_RUN)
            if found is None or not mine or (found["metadata"].get("labels") or {}).get(LABEL_RUN) != mine:
                raise
            return found
        return made

    def merge(self, kind: str, name: str, patch: Mapping[str, Any], *, resource_version: str | None = None) -> None:
        """Merge-patch an object, with `resource_version` only the state that was read. Raises ClusterError."""
        if resource_version is not None:
            patch = {**patch, "metadata": {**patch.get("metadata", {}), "resourceVersion": resource_version}}
        self._patch(kind, name, "merge", patch)

    def replace_spec(self, kind: str, name: str, spec: Mapping[str, Any], *, resource_version: str | None) -> None:
        """Put a whole spec in place of the present one. Raises ClusterError."""
        operations: list[dict[str, Any]] = [{"op": "replace", "path": "/spec", "value": spec}]
        if resource_version is not None:
            operations.insert(0, {"op": "test", "path": "/metadata/resourceVersion", "value": resource_version})
        self._patch(kind, name, "json", operations)

    def _patch(self, kind: str, name: str, form: str, value: object) -> None:
        # Over stdin: a spec may hold secrets, and everybody on the machine can read the arguments of a process.
        self._run("patch", kind, name, "--type", form, "--patch-file", "/dev/stdin", given=json.dumps(value))

    def delete(self, kind: str, name: str, *, wait_seconds: float = 0) -> None:
        """Delete an object with all that it owns; none is fine. Waits until it is gone. Raises ClusterError."""
        words = ["delete", kind, name, "--ignore-not-found", "--cascade=foreground"]
        words += ["--wait", f"--timeout={wait_seconds:.0f}s"] if wait_seconds else ["--wait=false"]
        self._run(*words, timeout=_TIMEOUT + wait_seconds)

    @contextlib.contextmanager
    def following(self, *words: str, to: IO[str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """A kubectl that goes on meanwhile, such as `logs -f`; ended at the end."""
        # A session of its own: Ctrl-C in the terminal is ours to handle, not kubectl's.
        process = subprocess.Popen(
            [*self.words, *words],
            stdin=subprocess.DEVNULL,
            stdout=to,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait()

    def _object(self, text: str) -> dict[str, Any]:
        """An answer of kubectl. Raises ClusterError when it is no JSON object."""
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise ClusterError(f"{self.words[0]}: answers no JSON object; is it kubectl?")
        return value

    def _run(self, *words: str, given: str | None = None, timeout: float = _TIMEOUT) -> str:
        said = ""
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(min(8.0, 0.5 * 2**attempt))
            try:
                done = subprocess.run(
                    [*self.words, *words],
                    input=given,
                    text=True,
                    capture_output=True,
                    check=False,
                    timeout=timeout,
                    start_new_session=True,
                )
            except subprocess.TimeoutExpired:
                said = f"no answer in {timeout:.0f} s"
                continue
            except OSError as error:
                raise ClusterError(f"{self.words[0]}: {error.strerror or error}") from None
            if done.returncode == 0:
                return done.stdout
            said = last_line(done.stderr)
            if "AlreadyExists" in done.stderr:
                raise AlreadyThereError(f"kubectl {words[0]}: {said}")
            if not any(text in done.stderr for text in _BUSY):
                break
        raise ClusterError(f"kubectl {shown(words)}: {said}")


def shown(words: Sequence[str]) -> str:
    """A command line for people: what and whom, not the payload."""
    return " ".join(word for word in words[:3] if not word.startswith("{"))


def last_line(text: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "failed without a word"
