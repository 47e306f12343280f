"""Certificates: who is believed by whom, until when, and who may read a key."""

import ipaddress
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from deploy.local.certificates import VALID_FOR, Authority, KeyPair, signing_key
from deploy.local.kubeconfigs import kubeconfig, merge_kubeconfig, write_kubeconfig

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
AUTHORITY = Authority.create("test", NOW)


def verify_server(pair: KeyPair, authority: Authority, host: str, at: datetime) -> None:
    subject: x509.verification.Subject
    try:
        subject = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        subject = x509.DNSName(host)
    verifier = PolicyBuilder().store(Store([authority.certificate])).time(at).build_server_verifier(subject)
    verifier.verify(x509.load_pem_x509_certificate(pair.certificate), [])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_serving_certificate_is_believed_for_its_hosts(host: str) -> None:
    pair = AUTHORITY.serving("kube-apiserver", ["127.0.0.1", "localhost"], NOW)

    verify_server(pair, AUTHORITY, host, NOW)


@pytest.mark.parametrize(
    ("authority", "host", "at"),
    [
        pytest.param(Authority.create("test", NOW), "127.0.0.1", NOW, id="another authority of the same name"),
        pytest.param(AUTHORITY, "127.0.0.2", NOW, id="another host"),
        pytest.param(AUTHORITY, "127.0.0.1", NOW + VALID_FOR + timedelta(seconds=1), id="after its end"),
        pytest.param(AUTHORITY, "127.0.0.1", NOW - timedelta(minutes=6), id="before its begin"),
    ],
)
def test_a_serving_certificate_is_not_believed_otherwise(authority: Authority, host: str, at: datetime) -> None:
    pair = AUTHORITY.serving("kube-apiserver", ["127.0.0.1"], NOW)

    with pytest.raises(VerificationError):
        verify_server(pair, authority, host, at)


def test_a_client_certificate_names_the_user_and_the_groups_and_serves_nobody() -> None:
    certificate = x509.load_pem_x509_certificate(AUTHORITY.client("alice", ["red", "blue"], NOW).certificate)

    assert [one.value for one in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["alice"]
    assert [one.value for one in certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)] == [
        "red",
        "blue",
    ]
    assert list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.CLIENT_AUTH
    ]


def test_an_authority_is_taken_up_again_as_it_was_written(tmp_path: Path) -> None:
    AUTHORITY.write(tmp_path, "ca")

    again = Authority.load(tmp_path, "ca")

    assert again.pem == AUTHORITY.pem
    verify_server(again.serving("server", ["localhost"], NOW), AUTHORITY, "localhost", NOW)


def test_an_authority_near_its_end_is_no_longer_used() -> None:
    assert AUTHORITY.is_valid_at(NOW + VALID_FOR - timedelta(days=2))
    assert not AUTHORITY.is_valid_at(NOW + VALID_FOR - timedelta(hours=23))


def test_a_private_key_is_readable_by_its_owner_alone_even_over_an_open_file(tmp_path: Path) -> None:
    (tmp_path / "a.key").write_text("was open to all")

    _, key = AUTHORITY.client("a", [], NOW).write(tmp_path, "a")

    assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_the_signing_key_is_one_that_the_api_server_reads() -> None:
    assert signing_key().startswith(b"-----BEGIN EC PRIVATE KEY-----")
    assert serialization.load_pem_private_key(signing_key(), None) is not None


def test_a_kubeconfig_is_private_and_carries_all_that_is_needed(tmp_path: Path) -> None:
    pair = KeyPair(b"certificate", b"key")

    path = write_kubeconfig(tmp_path / "config", kubeconfig("here", "https://127.0.0.1:1", b"authority", "alice", pair))

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert yaml.safe_load(path.read_text()) == {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "here", "cluster": {"server": "https://127.0.0.1:1", "certificate-authority-data": "YXV0aG9yaXR5"}}
        ],
        "users": [
            {"name": "alice", "user": {"client-certificate-data": "Y2VydGlmaWNhdGU=", "client-key-data": "a2V5"}}
        ],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "alice"}}],
        "current-context": "here",
    }


def test_merging_keeps_what_is_there_and_replaces_what_has_the_same_name() -> None:
    there = {
        "clusters": [{"name": "here", "cluster": {"server": "old"}}, {"name": "work", "cluster": {"server": "w"}}],
        "users": None,
        "contexts": [{"name": "work", "context": {"cluster": "work", "user": "w"}}],
        "current-context": "work",
        "preferences": {"colors": True},
    }
    new = kubeconfig("here", "https://127.0.0.1:1", b"", "alice", KeyPair(b"", b""))

    merged = merge_kubeconfig(there, new)

    assert [(one["name"], one["cluster"]["server"]) for one in merged["clusters"]] == [
        ("here", "https://127.0.0.1:1"),
        ("work", "w"),
    ]
    assert [one["name"] for one in merged["users"]] == ["alice"]
    assert [one["name"] for one in merged["contexts"]] == ["work", "here"]
    assert (merged["current-context"], merged["preferences"]) == ("here", {"colors": True})


def test_merging_into_nothing_is_the_new_one_alone() -> None:
    new = kubeconfig("here", "https://127.0.0.1:1", b"", "alice", KeyPair(b"", b""))

    assert merge_kubeconfig({}, new) == {**new, "preferences": {}}
