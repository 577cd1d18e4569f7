from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4_operator.runtime.certificates import (
    AUTHORITY_LIVES,
    BrokenMaterial,
    Material,
    is_servable,
    read_material,
    renew_authority,
    renew_serving,
    secret_data,
)

NOW = datetime(2026, 11, 29, tzinfo=UTC)
LIFE = timedelta(days=90)
HOSTS = ("dsv4-operator-webhook.dsv4-system.svc", "127.0.0.1", "::1")


def fresh(now: datetime = NOW) -> Material:
    return renew_serving(renew_authority(None, now, LIFE), HOSTS, now, LIFE)


def accepts(trusted: Material, served: Material, host: str, now: datetime) -> bool:
    """What a TLS client says that trusts one bundle and meets another certificate; not our own reading of it."""
    store = Store([x509.load_pem_x509_certificate(pem.encode()) for pem in trusted.authorities])
    verifier = PolicyBuilder().store(store).time(now).build_server_verifier(x509.DNSName(host))
    try:
        verifier.verify(x509.load_pem_x509_certificate(served.certificate.encode()), [])
    except VerificationError:
        return False
    return True


def test_a_client_that_trusts_the_authority_accepts_the_certificate() -> None:
    material = fresh()
    assert accepts(material, material, HOSTS[0], NOW)
    assert not accepts(material, material, "elsewhere.svc", NOW)
    assert not accepts(material, material, HOSTS[0], NOW + LIFE + timedelta(seconds=1))
    assert not accepts(fresh(), material, HOSTS[0], NOW)


def test_a_clock_that_is_behind_accepts_it() -> None:
    assert accepts(fresh(), material := fresh(), HOSTS[0], NOW) is False
    assert accepts(material, material, HOSTS[0], NOW - timedelta(minutes=59))


def test_what_is_good_stays_what_it_is() -> None:
    material = fresh()
    later = NOW + LIFE * 0.6
    assert renew_serving(renew_authority(material, later, LIFE), HOSTS, later, LIFE) == material
    assert read_material(secret_data(material)) == material


def test_a_certificate_is_renewed_when_a_third_of_its_life_is_left() -> None:
    material = fresh()
    later = NOW + LIFE * 2 / 3
    renewed = renew_serving(renew_authority(material, later, LIFE), HOSTS, later, LIFE)
    assert renewed.certificate != material.certificate
    assert renewed.authorities == material.authorities
    assert renewed.expires == later + LIFE


def test_other_hosts_need_another_certificate_at_once() -> None:
    material = fresh()
    assert not is_servable(material, ("new.svc",), NOW)
    assert accepts(material, renew_serving(material, ("new.svc",), NOW, LIFE), "new.svc", NOW)


def test_a_new_authority_is_trusted_before_it_signs() -> None:
    material = fresh()
    later = NOW + LIFE * AUTHORITY_LIVES * 2 / 3
    material = renew_serving(material, HOSTS, later - LIFE * 0.7, LIFE)
    grown = renew_authority(material, later, LIFE)
    assert grown.authorities[1:] == material.authorities
    assert grown.certificate == material.certificate, "publishing comes first"
    assert accepts(grown, material, HOSTS[0], later)
    # A certificate that merely grows old waits until API servers have heard of the new authority.
    assert renew_serving(grown, HOSTS, later, LIFE) == grown
    settled = later + LIFE * 0.7
    renewed = renew_serving(renew_authority(grown, settled, LIFE), HOSTS, settled, LIFE)
    assert accepts(renewed, renewed, HOSTS[0], settled)
    assert not accepts(material, renewed, HOSTS[0], settled), "the new authority signs"


def test_an_expired_authority_is_dropped() -> None:
    material = renew_authority(fresh(), NOW + LIFE * 3, LIFE)
    assert len(material.authorities) == 2
    assert len(renew_authority(material, NOW + LIFE * AUTHORITY_LIVES, LIFE).authorities) == 1


@settings(deadline=None, max_examples=15)
@given(st.lists(st.floats(min_value=0.005, max_value=0.3), min_size=1, max_size=60))
def test_whoever_looks_in_time_never_leaves_a_gap(steps: list[float]) -> None:
    """Checks at any times less than a third of a life apart: what is served is accepted by the old and new bundle."""
    now, material = NOW, fresh()
    for step in steps:
        now += LIFE * step
        grown = renew_authority(material, now, LIFE)
        assert accepts(grown, material, HOSTS[0], now), "after publishing, before renewing"
        renewed = renew_serving(grown, HOSTS, now, LIFE)
        assert accepts(grown, renewed, HOSTS[0], now), "after renewing"
        # Another replica, which has not looked yet, still serves the former one.
        assert accepts(renewed, material, HOSTS[0], now)
        assert len(renewed.authorities) <= 3
        material = renewed


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"ca.crt": None}, "ca.crt is missing"),
        ({"ca.crt": "Z2FyYmxlZA=="}, "ca.crt holds no certificates"),
        ({"ca.crt": ""}, "ca.crt holds no certificates"),
        ({"ca.key": "Z2FyYmxlZA=="}, "ca.key holds no private key"),
        ({"tls.key": "not base64!"}, "tls.key is missing or is not text"),
        ({"tls.crt": "Z2FyYmxlZA=="}, "tls.crt holds no certificate"),
        ({"tls.key": "from another"}, "tls.key is not the key of tls.crt"),
        ({"ca.key": "from another"}, "ca.key is not the key of the first certificate"),
    ],
)
def test_a_broken_secret_is_told_without_its_values(change: dict[str, str | None], says: str) -> None:
    data = secret_data(fresh())
    for name, value in change.items():
        if value is None:
            del data[name]
        else:
            data[name] = secret_data(fresh())[name] if value == "from another" else value
    with pytest.raises(BrokenMaterial, match=says) as caught:
        read_material(data)
    for value in data.values():
        if len(value) > 20:
            assert value[:20] not in str(caught.value)
            assert base64.b64decode(value)[40:60].decode() not in str(caught.value)
