"""What the lab writes for its programs: certificates, kubeconfig, scrape configuration."""

import base64
import ipaddress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtensionOID, NameOID

from tonnage_lab import certificates, controlplane, kwok, prometheus

NOON = datetime(2026, 9, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> certificates.Certificates:
    return certificates.issue(tmp_path_factory.mktemp("lab") / "certificates", now=NOON)


def read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_the_server_is_known_by_its_loopback_and_service_names(issued):
    extension = read(issued.server.certificate).extensions.get_extension_for_oid(
        ExtensionOID.SUBJECT_ALTERNATIVE_NAME
    )
    addresses = extension.value.get_values_for_type(x509.IPAddress)
    names = extension.value.get_values_for_type(x509.DNSName)

    assert addresses == [ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("10.96.0.1")]
    assert {"localhost", "kubernetes.default.svc"} <= set(names)


def test_the_administrator_is_in_the_group_that_may_do_all(issued):
    subject = read(issued.admin.certificate).subject

    (group,) = subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    assert group.value == "system:masters"


def test_no_certificate_has_an_empty_list_of_names_which_go_refuses(issued):
    for pair in (issued.server, issued.admin):
        extensions = read(pair.certificate).extensions
        assert list(extensions.get_extension_for_class(x509.SubjectAlternativeName).value)


def test_what_the_ca_signed_is_valid_for_a_year(issued):
    for pair in (issued.server, issued.admin):
        certificate = read(pair.certificate)
        certificate.verify_directly_issued_by(read(issued.ca))
        assert certificate.not_valid_before_utc < NOON
        assert certificate.not_valid_after_utc == datetime(2027, 9, 1, 12, tzinfo=UTC)


def test_the_key_of_the_ca_is_written_nowhere(issued):
    authority = read(issued.ca).public_key()
    keys = (
        load_pem_private_key(path.read_bytes(), None) for path in issued.ca.parent.glob("*.key")
    )

    assert authority not in [key.public_key() for key in keys]


def test_only_the_owner_reads_keys(issued):
    keys = (issued.server.key, issued.admin.key, issued.token_key)

    assert {path.stat().st_mode & 0o777 for path in keys} == {0o600}
    assert issued.ca.parent.stat().st_mode & 0o777 == 0o700


def test_the_kubeconfig_needs_no_other_file(issued):
    written = controlplane.admin_kubeconfig("https://127.0.0.1:6443", issued)

    cluster = written["clusters"][0]["cluster"]
    assert cluster["server"] == "https://127.0.0.1:6443"
    assert base64.b64decode(cluster["certificate-authority-data"]) == issued.ca.read_bytes()


def test_prometheus_keeps_only_managed_pods_and_joins_by_namespace_and_pod():
    written = prometheus.scrape_configuration(Path("/lab/kubeconfig"), 5)

    job, operators = written["scrape_configs"]
    assert (job.get("honor_labels"), operators["honor_labels"]) == (None, True)
    keep = {
        rule["source_labels"][0]: rule["regex"]
        for rule in job["relabel_configs"]
        if rule.get("action") == "keep"
    }
    copied = {rule["target_label"] for rule in job["relabel_configs"] if "target_label" in rule}
    assert written["global"] == {"scrape_interval": "5s", "scrape_timeout": "4s"}
    assert job["kubernetes_sd_configs"] == [{"role": "pod", "kubeconfig_file": "/lab/kubeconfig"}]
    assert keep == {
        "__meta_kubernetes_pod_label_tonnage_dev_managed": "true",
        "__meta_kubernetes_pod_container_port_name": "http",
        "__meta_kubernetes_pod_phase": "Pending|Running",
    }
    assert copied == {"namespace", "pod"}


def test_a_simulated_node_offers_its_gpus():
    node = kwok.gpu_node("n0", num_gpus=8, gpu_product="NVIDIA-H200", labels={"zone": "a"})

    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert node["metadata"]["annotations"] == {"kwok.x-k8s.io/node": "fake"}
    assert node["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-H200"
    assert node["metadata"]["labels"]["zone"] == "a"
