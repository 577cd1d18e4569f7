"""Certificates of the webhook, made by the operator itself: an authority of its own and a serving certificate. Pure.

Nobody but the API server need trust them, and it does so by the caBundle of one ValidatingWebhookConfiguration. Both
kinds are renewed when a third of their life is left. Authorities overlap: a new one is trusted beside the old one
before it signs anything, so no API server ever meets a certificate that it cannot verify.
"""

from __future__ import annotations

import base64
import ipaddress
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIVES: Final = 4
"""Life of an authority, in lives of a serving certificate."""
SETTLE_FRACTION: Final = 50
"""A new authority signs nothing for this fraction of a serving certificate's life: API servers learn of it first."""
BACKDATED: Final = timedelta(hours=1)
"""Certificates are valid from an hour before they are made, for API servers whose clock is behind."""

AUTHORITIES_KEY, AUTHORITY_KEY_KEY, CERTIFICATE_KEY, KEY_KEY = "ca.crt", "ca.key", "tls.crt", "tls.key"
"""Keys of the Secret: those of type kubernetes.io/tls, and the authority's private key beside them."""


class BrokenMaterial(ValueError):
    """The Secret's data cannot be used; the message names the key, never its value."""


@dataclass(frozen=True, slots=True)
class Material:
    """What the Secret holds, as PEM texts."""

    authorities: tuple[str, ...]
    """Certificates to trust, the one that signs first."""
    authority_key: str
    """Private key of the first authority."""
    certificate: str = ""
    """The serving certificate; empty until the authority is trusted."""
    key: str = ""

    @property
    def bundle(self) -> str:
        """All authorities to trust, base64, as a caBundle has it."""
        return base64.b64encode("".join(self.authorities).encode()).decode()

    @property
    def expires(self) -> datetime | None:
        """When the serving certificate expires; None without one."""
        return _load(self.certificate).not_valid_after_utc if self.certificate else None


def read_material(data: Mapping[str, Any]) -> Material:
    """From a Secret's `data`. Raises BrokenMaterial when it is incomplete, unreadable, or its parts do not belong
    together.
    """
    texts: dict[str, str] = {}
    for name in (AUTHORITIES_KEY, AUTHORITY_KEY_KEY, CERTIFICATE_KEY, KEY_KEY):
        try:
            texts[name] = base64.b64decode(str(data[name]), validate=True).decode("ascii")
        except (KeyError, ValueError):
            raise BrokenMaterial(f"{name} is missing or is not text") from None
    try:
        authorities = x509.load_pem_x509_certificates(texts[AUTHORITIES_KEY].encode())
    except ValueError:
        raise BrokenMaterial(f"{AUTHORITIES_KEY} holds no certificates") from None
    if _public(_load_key(texts[AUTHORITY_KEY_KEY], AUTHORITY_KEY_KEY).public_key()) != _public(
        authorities[0].public_key()
    ):
        raise BrokenMaterial(f"{AUTHORITY_KEY_KEY} is not the key of the first certificate in {AUTHORITIES_KEY}")
    if texts[CERTIFICATE_KEY] or texts[KEY_KEY]:
        try:
            certificate = _load(texts[CERTIFICATE_KEY])
        except ValueError:
            raise BrokenMaterial(f"{CERTIFICATE_KEY} holds no certificate") from None
        if _public(_load_key(texts[KEY_KEY], KEY_KEY).public_key()) != _public(certificate.public_key()):
            raise BrokenMaterial(f"{KEY_KEY} is not the key of {CERTIFICATE_KEY}")
    return Material(
        tuple(_pem(authority) for authority in authorities),
        texts[AUTHORITY_KEY_KEY],
        texts[CERTIFICATE_KEY],
        texts[KEY_KEY],
    )


def secret_data(material: Material) -> dict[str, str]:
    """A Secret's `data` for `read_material`."""
    texts = {
        AUTHORITIES_KEY: "".join(material.authorities),
        AUTHORITY_KEY_KEY: material.authority_key,
        CERTIFICATE_KEY: material.certificate,
        KEY_KEY: material.key,
    }
    return {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}


def renew_authority(present: Material | None, now: datetime, life: timedelta) -> Material:
    """`present` with an authority that has over a third of its life left, and without expired ones.

    `life` is that of a serving certificate. The serving certificate stays what it is: sign it with `renew_serving` once
    the authorities are trusted.
    """
    if present is None:
        authority, key = _make_authority(now, life)
        return Material((authority,), key)
    kept = tuple(pem for pem in present.authorities if _load(pem).not_valid_after_utc > now)
    if kept[:1] == present.authorities[:1] and _load(kept[0]).not_valid_after_utc - now > life * AUTHORITY_LIVES / 3:
        return replace(present, authorities=kept)
    authority, key = _make_authority(now, life)
    return replace(present, authorities=(authority, *kept), authority_key=key)


def renew_serving(material: Material, hosts: Sequence[str], now: datetime, life: timedelta) -> Material:
    """`material` with a serving certificate for `hosts`; itself when it has a good one.

    Call it when all of `material.authorities` are trusted. One that merely grows old waits for a new authority to
    settle; one that no client can accept is replaced at once.
    """
    authority = _load(material.authorities[0])
    if is_servable(material, hosts, now):
        old = _load(material.certificate).not_valid_after_utc - now <= life / 3
        settled = now - (authority.not_valid_before_utc + BACKDATED) >= life / SETTLE_FRACTION
        if not (old and settled):
            return material
    certificate, key = _make_serving(material, hosts, now, life)
    return replace(material, certificate=certificate, key=key)


def is_servable(material: Material, hosts: Sequence[str], now: datetime) -> bool:
    """Whether a client that trusts the authorities accepts the serving certificate for every one of `hosts`."""
    if not material.certificate:
        return False
    certificate = _load(material.certificate)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    covered = all(name in list(names) for name in _general_names(hosts))
    valid = certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc
    return covered and valid and any(_signed(certificate, _load(pem)) for pem in material.authorities)


def _signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _make_authority(now: datetime, life: timedelta) -> tuple[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    # A name of its own for each, so that two authorities are told apart in a bundle.
    name = _name(f"dsv4-operator webhook authority {secrets.token_hex(4)}")
    certificate = (
        _builder(now, now + life * AUTHORITY_LIVES, name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pem(certificate), _key_pem(key)


def _make_serving(material: Material, hosts: Sequence[str], now: datetime, life: timedelta) -> tuple[str, str]:
    authority = _load(material.authorities[0])
    authority_key = _load_key(material.authority_key, AUTHORITY_KEY_KEY)
    key = ec.generate_private_key(ec.SECP256R1())
    until = min(now + life, authority.not_valid_after_utc)
    certificate = (
        _builder(now, until, _name("dsv4-operator webhook"), authority.subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(_general_names(hosts)), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return _pem(certificate), _key_pem(key)


def _builder(
    now: datetime, until: datetime, subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(until)
    )


def _general_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return names


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _load(pem: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem.encode())


def _load_key(pem: str, name: str) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem.encode(), None)
    except (ValueError, TypeError):
        raise BrokenMaterial(f"{name} holds no private key") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BrokenMaterial(f"{name} is of another kind than the keys that the operator makes")
    return key


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    encoding, layout = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, layout, serialization.NoEncryption()).decode()


def _public(key: Any) -> bytes:
    return bytes(key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo))
