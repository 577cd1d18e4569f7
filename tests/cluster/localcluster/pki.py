"""Keys and certificates of one cluster, made with the openssl program; valid for ten days, never reused."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from localcluster.errors import ClusterError

DAYS = "10"


def _openssl(*arguments: str) -> None:
    try:
        done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ClusterError("openssl is missing: run install-prerequisites.sh") from error
    if done.returncode:
        raise ClusterError(f"openssl {arguments[0]}: {done.stderr.strip()}")


class Pki:
    """The certificate authority of a cluster and what it signed, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = folder / "ca.crt"
        self._ca_key = folder / "ca.key"
        self.service_account_key = folder / "sa.key"

    def create(self) -> None:
        """Makes the authority and the key that signs service account tokens, unless they are there."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.ca.exists():
            subject = ("-subj", "/CN=dsv4-local-cluster-ca", "-days", DAYS)
            usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature")
            key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(self._ca_key))
            _openssl("req", "-x509", *key, "-out", str(self.ca), *subject, *usage)
        if not self.service_account_key.exists():
            _openssl("genrsa", "-out", str(self.service_account_key), "2048")

    def issue(self, name: str, subject: str, hosts: Sequence[str] = ()) -> tuple[Path, Path]:
        """Certificate and key for servers and clients. `subject` as openssl writes it, `hosts` as `IP:..`, `DNS:..`."""
        certificate, key, request = (self.folder / f"{name}.{end}" for end in ("crt", "key", "csr"))
        if certificate.exists():
            return certificate, key
        extensions = self.folder / f"{name}.ext"
        lines = [
            "basicConstraints=CA:FALSE",
            "subjectKeyIdentifier=hash",
            "authorityKeyIdentifier=keyid",
            "keyUsage=critical,digitalSignature",
            "extendedKeyUsage=serverAuth,clientAuth",
        ]
        if hosts:
            lines.append("subjectAltName=" + ",".join(hosts))
        extensions.write_text("\n".join(lines) + "\n")
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        _openssl("req", "-new", *curve, "-keyout", str(key), "-out", str(request), "-subj", subject)
        signer = ("-CA", str(self.ca), "-CAkey", str(self._ca_key), "-CAcreateserial", "-days", DAYS)
        _openssl("x509", "-req", "-in", str(request), *signer, "-extfile", str(extensions), "-out", str(certificate))
        return certificate, key
