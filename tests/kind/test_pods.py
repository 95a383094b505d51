"""What only a kubelet shows: the operator and an engine as pods of images, by name and address."""

import json

import pytest

from site_lab import NAME, a_model, a_site_of, a_tenant, until
from tonnage.api.pod_rules import HTTP_PORT
from tonnage_lab import site
from tonnage_lab.site import NAMESPACE

FETCH = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=10).status)"


@pytest.fixture(scope="module")
def standard_site(tmp_path_factory, programs):
    with a_site_of(tmp_path_factory.mktemp("standard"), programs, site.STANDARD) as made:
        yield made


@pytest.fixture(scope="module")
def tenant(standard_site):
    with a_tenant(standard_site) as made:
        made.apply(a_model())
        made.wait_ready()
        yield made


def test_the_operator_is_a_pod_like_any_other(standard_site):
    (pod,) = standard_site.operator_pods()
    context = pod["spec"]["containers"][0]["securityContext"]

    assert not pod["spec"].get("hostNetwork")
    assert pod["status"]["podIP"] != pod["status"]["hostIP"]
    assert pod["spec"]["securityContext"]["runAsUser"] == 65532
    assert context["readOnlyRootFilesystem"]
    assert context["capabilities"] == {"drop": ["ALL"]}


def test_an_engine_is_reached_by_the_name_of_its_service(standard_site, tenant):
    url = f"http://{NAME}.{tenant.namespace}.svc:{HTTP_PORT}/health"
    said = standard_site.plane.kubectl(
        "exec", "-n", NAMESPACE, "deployment/tonnage", "--", "python", "-c", FETCH, url
    )

    assert said.strip() == "200"


def test_prometheus_is_found_by_name_and_finds_the_engine(tenant):
    until(
        lambda: tenant.condition("MetricsAvailable").get("status") == "True",
        "the operator has measured the engine",
        told=lambda: json.dumps(tenant.status(), default=str),
    )


def test_a_pod_that_dies_is_made_anew(tenant):
    """The kubelet's own restart, and the Deployment's replacement, end Ready."""
    (pod,) = tenant.kubectl("get", "pods", "-o", "name").split()
    tenant.kubectl("delete", pod, "--wait=true")
    tenant.wait_ready()

    assert tenant.kubectl("get", "pods", "-o", "name").split() != [pod]
