"""A webhook that gives no answer, on a real API server."""

import time
from base64 import b64encode

import pytest

from api_world import an_api_world
from http_double import json_reply, new_certificates, serving, showing
from site_lab import a_model, show
from tonnage.cluster.kube import MODEL_DEPLOYMENTS

pytestmark = pytest.mark.lab

NUM_HUNG = 200
ADVISED = {"maxReplicas": 4, "mode": "Recommend"}


def a_hanging_webhook(namespace, url, authority):
    """On the status of ModelDeployments of one namespace."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": namespace},
        "webhooks": [
            {
                "name": "status.example.test",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "timeoutSeconds": 30,
                "clientConfig": {"url": f"{url}/", "caBundle": b64encode(authority).decode()},
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "rules": [
                    {
                        "apiGroups": ["tonnage.dev"], "apiVersions": ["*"], "operations": ["*"],
                        "resources": ["modeldeployments/status"],
                    }
                ],
            }
        ],
    }  # fmt: skip


@pytest.fixture
def hung(fault_plane, administrator, tmp_path):
    """(world, namespace, asked): a namespace whose webhook hangs, and what that was asked."""
    certificates = new_certificates(tmp_path / "webhook")

    def hang(_):
        server.stopping.wait()
        return json_reply({})

    with (
        an_api_world(fault_plane, administrator, tmp_path) as world,
        serving(hang, tls=showing(certificates.server)) as server,
    ):
        evil = f"{world.namespace}-evil"
        fault_plane.kubectl("create", "namespace", evil)
        authority = certificates.ca.read_bytes()
        fault_plane.kubectl.apply([a_hanging_webhook(evil, server.url, authority)])
        world.add_operator(namespaces=(world.namespace, evil))
        yield world, evil, server.asked
        fault_plane.kubectl("delete", "validatingwebhookconfiguration", evil)
        server.stopping.set()
        fault_plane.kubectl("delete", "namespace", evil, "--wait=false")


def replicas_told(world):
    return ((world.get(MODEL_DEPLOYMENTS) or {}).get("status") or {})["replicas"]["desired"]


class TestAWebhookOnStatusThatHangs:
    def test_holds_up_neither_replicas_nor_status_of_another_namespace(
        self, hung, request, tmp_path
    ):
        world, evil, asked = hung
        world.begin()
        for number in range(NUM_HUNG):
            body = a_model(f"m{number}", scaling=ADVISED)
            body["metadata"]["namespace"] = evil
            world.api.create(MODEL_DEPLOYMENTS.path(evil), body)
        world.until(lambda: len(asked) >= 4, "the webhook is asked")

        took_s = []
        for number in (2, 3, 4):
            asked_at_s = time.monotonic()
            world.ask_for(number)
            world.until_replicas(number)
            took_s.append(round(time.monotonic() - asked_at_s, 1))
            world.until(lambda number=number: replicas_told(world) == number, "the status says so")
        figures = {"replicas_written_after_s": took_s}
        show(request.config, "A status webhook that hangs", figures, tmp_path)

        assert world.operator.num_starts == 1
        assert world.operator.probe("/healthz") == 200
