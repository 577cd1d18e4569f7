from __future__ import annotations

from pathlib import Path

import pytest

from dsv4_operator.kube.client import KubeClient
from dsv4_operator.kube.connect import ConnectError, load_configuration

GOOD = """
apiVersion: v1
kind: Config
current-context: one
clusters:
- {name: one, cluster: {server: "http://one.example:8001"}}
- {name: two, cluster: {server: "https://two.example:6443/prefix/", certificate-authority: ca.crt}}
contexts:
- {name: one, context: {cluster: one, user: me}}
- {name: two, context: {cluster: two, user: me}}
users:
- {name: me, user: {token: abc}}
"""


@pytest.fixture(autouse=True)
def outside_of_any_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    path = tmp_path / "config"
    path.write_text(GOOD)
    return path


async def test_current_context_and_token(kubeconfig: Path) -> None:
    configuration, _ = await load_configuration(str(kubeconfig))
    assert configuration.host == "http://one.example:8001"
    assert (await configuration.auth_settings())["BearerToken"]["value"] == "Bearer abc"
    assert kubeconfig.read_text() == GOOD, "the user's file is never written"


async def test_environment_names_the_file(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    configuration, _ = await load_configuration(context="one")
    assert configuration.host == "http://one.example:8001"


async def test_explicit_file_beats_the_environment(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/does/not/exist")
    configuration, _ = await load_configuration(str(kubeconfig))
    assert configuration.host == "http://one.example:8001"


async def test_home_is_the_last_resort(kubeconfig: Path, tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    kubeconfig.rename(tmp_path / ".kube" / "config")
    configuration, _ = await load_configuration()
    assert configuration.host == "http://one.example:8001"


@pytest.mark.parametrize(
    ("content", "context", "words"),
    [
        pytest.param(None, None, "no such file", id="missing"),
        pytest.param(GOOD, "three", "three", id="unknown context"),
        pytest.param("{", None, "while parsing", id="not yaml"),
        pytest.param("[]", None, "config: ", id="not a kubeconfig"),
        pytest.param(GOOD, "two", "ca.crt", id="missing CA file"),
    ],
)
async def test_unusable_kubeconfig_is_one_line(
    content: str | None, context: str | None, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConnectError) as caught:
        await KubeClient.connect(user_agent="test", kubeconfig=str(path), context=context)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_pod_without_a_token_says_what_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(ConnectError, match="automountServiceAccountToken"):
        await load_configuration()
