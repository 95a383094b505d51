"""The certificates and keys of one control plane: a CA, a server, an administrator, tokens."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from trustme import CA, Blob, LeafCert

VALIDITY: Final = timedelta(days=365)
CLOCK_SKEW: Final = timedelta(minutes=5)
SERVER_NAMES: Final = (
    "127.0.0.1",
    "10.96.0.1",
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
"""The second is the first address of the Service range: the ``kubernetes`` Service."""
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
    token_key: Path
    """Signs the tokens of ServiceAccounts, and has the public key that they are checked by."""


def issue(folder: Path, *, now: datetime) -> Certificates:
    """Write fresh certificates and keys into a folder that only its owner can read.

    The CA's own key is written nowhere, so nobody signs anything else with it.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority, begins, ends = CA(path_length=0), now - CLOCK_SKEW, now + VALIDITY
    server = authority.issue_cert(
        *SERVER_NAMES, common_name="kube-apiserver", not_before=begins, not_after=ends
    )
    admin = authority.issue_cert(
        "admin",  # without a name the extension for names is empty, which Go refuses
        common_name="admin",
        organization_name=ADMIN_GROUP,
        not_before=begins,
        not_after=ends,
    )
    tokens = authority.issue_cert(common_name="tokens")
    return Certificates(
        ca=_write(folder / "ca.crt", authority.cert_pem),
        server=_pair(folder / "server", server),
        admin=_pair(folder / "admin", admin),
        token_key=_write(folder / "tokens.key", tokens.private_key_pem),
    )


def _pair(stem: Path, issued: LeafCert) -> Pair:
    return Pair(
        certificate=_write(stem.with_suffix(".crt"), issued.cert_chain_pems[0]),
        key=_write(stem.with_suffix(".key"), issued.private_key_pem),
    )


def _write(path: Path, content: Blob) -> Path:
    path.touch(mode=0o600)
    content.write_to_path(path)
    return path
