"""Nothing is left behind and nothing is lost: readers of stderr that go away, closed terminals, killed runs, clusters
that refuse."""

from __future__ import annotations

import contextlib
import json
import signal
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dsv4_operator.api.constants import LABEL_ROLE
from dsv4_operator.cli.bisect.backup import Backup
from dsv4_operator.cli.bisect.cluster import _ENGINES, ClusterRunner
from dsv4_operator.cli.bisect.decide import ArmResult, conclude
from dsv4_operator.cli.bisect.factors import Setting
from dsv4_operator.cli.bisect.objects import LABEL_TESTING
from dsv4_operator.cli.bisect.outcome import Batch
from dsv4_operator.cli.bisect.plan import Arm, Kind, Limits, make_plan
from dsv4_operator.cli.bisect.report import build, text
from dsv4_operator.cli.bisect.runner import ArmError, TeardownError
from dsv4_operator.cli.errors import UnreadableError
from dsv4_operator.cli.kubectl import ClusterError, Kubectl
from dsv4_operator.cli.output import warn
from dsv4_operator.cli.soak_cluster import run_job, termination_as_interrupt
from dsv4_operator.desired.soak_job import SoakJob
from dsv4_operator.engine.images import ImageDefaults

Write = Callable[..., Path]
GIVEN = Setting(index_k="BF16", hicache=True, overlap=True, early_send=False, pair=True, image="")


class Gone:
    """A stderr whose reader has ended."""

    def write(self, _text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError


def program(folder: Path, body: str) -> Path:
    """An executable that stands where kubectl would."""
    path = folder / "kubectl"
    path.write_text(f"#!{sys.executable}\n{body}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_warning_needs_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Gone())
    warn("removing")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_termination_and_a_closed_terminal_are_interrupts(number: signal.Signals) -> None:
    old = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), termination_as_interrupt():
        signal.raise_signal(number)
    assert signal.getsignal(number) is old


def test_a_second_hangup_does_not_stop_the_tidying() -> None:
    with termination_as_interrupt():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)


def test_nohup_stays() -> None:
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with termination_as_interrupt():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, old)


def test_the_spec_that_is_put_back_is_that_from_before_a_killed_run(tmp_path: Path) -> None:
    path = tmp_path / "out" / "test-before.json"
    assert Backup(path).keep({"own": 1}) == {"own": 1}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    # The run was killed; the object now holds the spec of an arm.
    again = Backup(path)
    assert again.keep({"arm": 1}) == {"own": 1}
    again.done()
    assert not path.exists()
    assert again.keep({"own": 2}) == {"own": 2}


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"spec": 1}'])
def test_a_broken_backup_stops_before_anything_is_edited(tmp_path: Path, content: str) -> None:
    path = tmp_path / "test-before.json"
    path.write_text(content)
    with pytest.raises(UnreadableError, match="holds no spec"):
        Backup(path).keep({"arm": 1})
    assert path.read_text() == content


def test_a_backup_that_cannot_be_written_stops_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnreadableError, match="is not edited without it"):
        Backup(tmp_path / "file" / "test-before.json").keep({})


@pytest.mark.parametrize("answer", ["", "[]", "hello", "null"])
def test_an_answer_that_is_no_object_is_one_line(tmp_path: Path, answer: str) -> None:
    kubectl = Kubectl((str(program(tmp_path, f"print({answer!r})")),))
    with pytest.raises(ClusterError, match="is it kubectl"):
        kubectl.listed("pods", "a=b")
    with pytest.raises(ClusterError, match="is it kubectl"):
        kubectl.create({"kind": "Service", "metadata": {"name": "x"}})


def test_a_spec_is_no_argument_of_a_process(tmp_path: Path) -> None:
    body = (
        "import json, sys\n"
        f"words = sys.argv[1:]\nsent = open(words[words.index('--patch-file') + 1]).read()\n"
        f"json.dump([words, json.loads(sent)], open({str(tmp_path / 'seen')!r}, 'w'))\n"
    )
    kubectl = Kubectl((str(program(tmp_path, body)),))
    kubectl.replace_spec("dsv4", "x", {"token": "hf_secret"}, resource_version="7")
    words, sent = json.loads((tmp_path / "seen").read_text())
    assert "hf_secret" not in " ".join(words)
    assert sent[0] == {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
    assert sent[1]["value"] == {"token": "hf_secret"}


class Refusing(Kubectl):
    """Makes objects and lets none be deleted or put back."""

    def listed(self, _kind: str, _selector: str) -> list[dict[str, Any]]:
        return []

    def create(self, obj: Mapping[str, Any]) -> dict[str, Any]:
        MADE[obj["metadata"]["name"]] = dict(obj)
        raise ClusterError("quota")

    def get(self, _kind: str, name: str) -> dict[str, Any] | None:
        return MADE.get(name)

    def delete(self, _kind: str, name: str, *, wait_seconds: float = 0) -> None:
        raise ClusterError(f"delete {name}: Forbidden")

    def replace_spec(self, *_words: Any, **_more: Any) -> None:
        raise ClusterError("patch: Forbidden")


MADE: dict[str, dict[str, Any]] = {}


def runner(raw: dict[str, Any], given: Setting = GIVEN, kubectl: Kubectl | None = None, **more: Any) -> ClusterRunner:
    MADE.clear()
    MADE["test"] = {"metadata": {"labels": {LABEL_TESTING: "true"}}, "spec": {"own": 1}}
    return ClusterRunner(
        kubectl or Refusing(("kubectl",)),
        raw,
        given,
        "run1",
        images=ImageDefaults(),
        canary_image="i",
        start_timeout=1,
        **more,
    )


class Left(Refusing):
    """A killed run has left its server behind."""

    def listed(self, kind: str, selector: str) -> list[dict[str, Any]]:
        assert selector == "serving.dsv4.dev/bisect=pair"
        return [{"metadata": {"name": "pair-bs-topology-one-server"}}] if "deployments" in kind.split(",") else []


def test_what_a_killed_run_left_is_found(spec: dict[str, Any]) -> None:
    run = runner({"metadata": {"name": "pair"}, "spec": spec}, kubectl=Left(("kubectl",)))
    with pytest.raises(UnreadableError, match="pair-bs-topology-one-server"), run:
        pass


class Drained(Kubectl):
    """The soak's pod has gone, and what it published is there."""

    def listed(self, _kind: str, _selector: str) -> list[dict[str, Any]]:
        running = {"containerStatuses": [{"name": "soak", "state": {"running": {}}}]}
        return [{"metadata": {"name": "soak-pod"}, "status": running}]

    def create(self, _obj: Mapping[str, Any]) -> dict[str, Any]:
        return {"metadata": {"uid": "u"}}

    def get(self, kind: str, _name: str) -> dict[str, Any] | None:
        data = {"exit-status": "130", "t.json": '{"verdict": "corrupted"}'}
        return {"data": data} if kind == "configmap" else None

    def delete(self, *_words: Any, **_more: Any) -> None:
        """Nothing is kept."""


def test_a_drained_soak_brings_what_it_published() -> None:
    job = SoakJob(name="soak-t-1", run="1", tag="t", image="i", arguments=())
    result = run_job(Drained(("kubectl", "--namespace", "n")), job, quiet=True)
    assert (result.status, result.interrupted) == (130, False)
    assert result.report("t") == {"verdict": "corrupted"}


def test_an_arm_that_cannot_be_removed_ends_the_bisection(spec: dict[str, Any]) -> None:
    raw = {"metadata": {"name": "pair"}, "spec": {**spec, "indexK": {"dtype": "FP8"}}}
    given = Setting(index_k="FP8", hicache=False, overlap=True, early_send=False, pair=True, image="")
    run = runner(raw, given)
    with (
        pytest.raises(TeardownError, match="pair-bs-given: could not be removed, and holds its GPUs"),
        run.open(Arm("given", Kind.GIVEN, given)),
    ):
        pass


def test_a_spec_that_cannot_be_put_back_stays_on_disk(tmp_path: Path, spec: dict[str, Any]) -> None:
    path = tmp_path / "test-before.json"
    run = runner({"metadata": {"name": "pair"}, "spec": spec}, test_deployment="test", backup=Backup(path))
    with pytest.raises(ClusterError, match=r"could not be put back.*test-before\.json"), run:
        pass
    assert json.loads(path.read_text())["spec"] == {"own": 1}


MARKER = "".join(
    f'dsv4_guard_info{{index_k="bf16",process="{process}",release="0.5.23",version="1"}} 1.0\n'
    for process in ("api", "scheduler")
)


class Engines(Kubectl):
    """Engine pods whose metrics only a command in the pod can read."""

    def listed(self, _kind: str, selector: str) -> list[dict[str, Any]]:
        assert "in (prefill,decode)" in selector  # pods of an engine's further nodes have no endpoint
        return PODS

    def execute(self, pod: str, _container: str, *words: str) -> str:
        assert ("30010" if "decode" in pod else "30000") in words[-1]
        return "" if "bare" in pod else MARKER


PODS: list[dict[str, Any]] = []


def pod(role: str, name: str = "", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": f"{name}{role}", "labels": {LABEL_ROLE: role}, **metadata}}


@pytest.mark.parametrize(
    ("pods", "said"),
    [
        ([pod("prefill"), pod("decode")], ""),
        ([pod("prefill"), pod("decode"), pod("decode", "bare", deletionTimestamp="now")], ""),
        ([pod("prefill"), pod("decode", "bare")], "pod baredecode: its engine shows no marker"),
        ([], "no engine pod has the labels"),
    ],
)
def test_the_guard_is_read_from_every_engine(pods: list[dict[str, Any]], said: str) -> None:
    PODS[:] = pods
    run = ClusterRunner(
        Engines(("kubectl", "--namespace", "n")),
        {"metadata": {"name": "pair"}, "spec": {}},
        GIVEN,
        "run1",
        images=ImageDefaults(),
        canary_image="i",
        start_timeout=1,
    )
    with pytest.raises(ArmError, match=said) if said else contextlib.nullcontext():
        run._check_guard({"indexK": {"dtype": "BF16"}}, f"x=y,{_ENGINES}")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("rounds", "0"),
        ("timeout", "nan"),
        ("batch-minutes", "-5"),
        ("startup-minutes", "nan"),
        ("max-gpu-hours", "nan"),
        ("max-gpu-hours", "-1"),
        ("start-timeout", "-1"),
        ("seed", "-3"),
    ],
)
def test_what_no_soak_takes_is_refused_before_gpus_are_asked_for(
    ctl: Any, spec: dict[str, Any], write: Write, option: str, value: str
) -> None:
    done = ctl("bisect", "-f", write(spec), "--dry-run", f"--{option}", value)
    assert done.code == 2
    assert f"--{option} = {value}" in done.err.replace(".0:", ":")


@pytest.mark.parametrize("words", [("--tag", "a b"), ("--sessions", "0"), ("--timeout", "inf")])
def test_a_soak_in_the_cluster_is_checked_here(ctl: Any, words: tuple[str, ...]) -> None:
    done = ctl("soak", "--in-cluster", "--image", "i", "--endpoint", "http://h", "--tag", "t", *words)
    assert done.code == 2
    assert f"{words[0]} = " in done.err


def test_the_folder_is_made_before_the_load(ctl: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    words = ("--in-cluster", "--image", "i", "--endpoint", "http://h", "--tag", "t")
    done = ctl("soak", *words, "--out", tmp_path / "file" / "o")
    assert done.code == 2
    assert "cannot be made" in done.err


def batch(corrupted: int, silent: int = 0) -> Batch:
    return Batch(sessions=80, corrupted=corrupted, wrong=corrupted, attempted=80, silent=silent, verdict="x")


def test_the_report_says_what_its_verdict_does_not_rest_on() -> None:
    plan = make_plan(GIVEN, Limits())
    results = {
        "given": ArmResult((batch(20),)),
        "hicache-off": ArmResult((batch(0, silent=30),)),
        "index-k-fp8": ArmResult((batch(20),)),
        "overlap-off": ArmResult((batch(20),)),
        "topology-one-server": ArmResult((batch(20),)),
        "given-again": ArmResult((), "no GPUs are free"),
    }
    report = build(plan, results, conclude(plan, results), seed=1, interrupted=True)
    assert report["outcome"] == "named"
    assert "The given setting was not run again at the end" in report["sentence"]
    assert report["notes"][0].startswith("Interrupted")
    assert report["notes"][1].startswith("hicache-off: 30 of 80 sessions had requests without a reply")
    assert len(report["notes"]) == 2
    assert all(f"note: {note}" in text(report) for note in report["notes"])
