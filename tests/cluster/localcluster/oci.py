"""A minimal OCI image archive from one static program, and loading archives into a cluster's containerd."""

import gzip
import hashlib
import io
import json
import platform
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localcluster.node import PAUSE_IMAGE

if TYPE_CHECKING:
    from localcluster.cluster import LocalCluster

_OCI = "application/vnd.oci.image"


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def write_archive(path: Path, image: str, program: Path, architecture: str = "amd64") -> None:
    """Writes an oci-archive of an image from scratch whose only file and entry point is `program`."""
    blobs: dict[str, tuple[bytes, int]] = {}

    def add(content: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = (content, 0o644)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

    name = program.name
    layer = _tar({name: (program.read_bytes(), 0o755)})
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Entrypoint": [f"/{name}"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": add(json.dumps(config).encode(), f"{_OCI}.config.v1+json"),
        "layers": [add(gzip.compress(layer, mtime=0), f"{_OCI}.layer.v1.tar+gzip")],
    }
    reference = add(json.dumps(manifest).encode(), f"{_OCI}.manifest.v1+json")
    reference["annotations"] = {"io.containerd.image.name": image, "org.opencontainers.image.ref.name": image}
    index = {"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": [reference]}
    blobs["index.json"] = (json.dumps(index).encode(), 0o644)
    blobs["oci-layout"] = (b'{"imageLayoutVersion":"1.0.0"}', 0o644)
    path.write_bytes(_tar(blobs))


def load_pause(cluster: "LocalCluster", program: Path) -> None:
    """Loads the image of pod sandboxes."""
    with tempfile.TemporaryDirectory(dir=cluster.dir) as folder:
        archive = Path(folder) / "pause.tar"
        write_archive(archive, PAUSE_IMAGE, program, architecture=_architecture())
        load_archive(cluster, archive)


def load_archive(cluster: "LocalCluster", archive: Path) -> None:
    """Imports an image archive (OCI or Docker format) into the cluster's containerd, for the kubelet to use."""
    cluster.ctr("images", "import", "--local", str(archive))


def _architecture() -> str:
    machine = platform.machine()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
