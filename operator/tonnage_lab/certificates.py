"""The certificates and keys of one control plane: a CA, a server, an administrator, tokens."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

VALIDITY: Final = timedelta(days=365)
CLOCK_SKEW: Final = timedelta(minutes=5)
SERVER_ADDRESSES: Final = ("127.0.0.1", "10.96.0.1")
"""Loopback, and the first address of the Service range: the ``kubernetes`` Service."""
SERVER_NAMES: Final = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
ADMIN_GROUP: Final = "system:masters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """Where the files are, all PEM."""

    ca: Path
    server: Pair
    admin: Pair
    token_signing_key: Path
    token_verifying_key: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Authority:
    name: x509.Name
    key: ec.EllipticCurvePrivateKey
    now: datetime

    def builder(
        self, subject: x509.Name, public_key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        own_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self.now - CLOCK_SKEW)
            .not_valid_after(self.now + VALIDITY)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(own_key, critical=False)
        )


def issue(folder: Path, *, now: datetime) -> Certificates:
    """Write fresh certificates and keys into a folder that only its owner can read."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority = _Authority(
        name=_name("tonnage-lab"), key=ec.generate_private_key(ec.SECP256R1()), now=now
    )
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in SERVER_NAMES]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in SERVER_ADDRESSES]
    server, admin = _name("kube-apiserver"), _name("admin", organization=ADMIN_GROUP)
    signing, verifying = _token_keys(folder)
    return Certificates(
        ca=_write(folder / "ca.crt", _pem(_self_signed(authority))),
        server=_leaf(authority, folder / "server", server, ExtendedKeyUsageOID.SERVER_AUTH, names),
        admin=_leaf(authority, folder / "admin", admin, ExtendedKeyUsageOID.CLIENT_AUTH, []),
        token_signing_key=signing,
        token_verifying_key=verifying,
    )


def _name(common_name: str, organization: str | None = None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization is not None:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(attributes)


def _self_signed(authority: _Authority) -> x509.Certificate:
    return (
        authority.builder(authority.name, authority.key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(authority.key, hashes.SHA256())
    )


def _leaf(
    authority: _Authority,
    stem: Path,
    subject: x509.Name,
    purpose: ObjectIdentifier,
    names: Sequence[x509.GeneralName],
) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        authority.builder(subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return Pair(
        certificate=_write(
            stem.with_suffix(".crt"), _pem(builder.sign(authority.key, hashes.SHA256()))
        ),
        key=_write(stem.with_suffix(".key"), _private_pem(key)),
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _token_keys(folder: Path) -> tuple[Path, Path]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public_pem = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return _write(folder / "tokens.key", _private_pem(key)), _write(
        folder / "tokens.pub", public_pem
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private_pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, content: bytes) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(content)
    return path
