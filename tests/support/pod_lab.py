"""A pod runner with one GPU node beside the control plane of the session, for tests."""

import itertools
import json
import sys
import uuid
from contextlib import contextmanager
from pathlib import Path

import yaml

import api_hand
from tonnage.cluster.kube import PODS, Resource
from tonnage_lab.processes import ProcessGroup, wait_until

SHELL = "example.test/shell:1"
VLLM_IMAGE = "vllm/vllm-openai:v0.33.0"
TRUTH = {"kv_tokens": 65536, "load_s": 0.2, "step": {"per_step_s": 0.002}}
SERVE = ["meta/model", "--served-model-name", "m", "--max-model-len", "4096"]
PROBE = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 2}
ENDPOINT_SLICES = Resource("apis/discovery.k8s.io/v1", "endpointslices")
OPERATOR = Path(__file__).parents[2] / "operator"


def eventually(condition, what, *, timeout_s=90):
    wait_until(condition, what=what, timeout_s=timeout_s, needs={})


class Lab:
    """A runner with one GPU node that only this test's pods select."""

    def __init__(self, kubectl, api, namespace, folder):
        self.kubectl, self.api = kubectl, api
        self.namespace, self.folder = namespace, folder
        self.node = f"gpu-{uuid.uuid4().hex[:8]}"
        self.group = ProcessGroup(logs=folder / "logs")

    def start(self, truth=TRUTH):
        (self.folder / "truth.json").write_text(json.dumps(truth))
        environment = {
            "TONNAGE_LAB_TRUTH": str(self.folder / "truth.json"),
            "PYTHONPATH": str(OPERATOR),
            "PYTHONUNBUFFERED": "1",
        }
        python = sys.executable
        config = {
            "state_directory": str(self.folder / "state"),
            "nodes": [{"name": self.node, "gpus": 4, "labels": {"pool": self.node}}],
            "images": [
                {
                    "image": "vllm/vllm-openai:v0\\.33\\..*",
                    "command": [python, "-m", "tonnage_lab.emulator", "serve"],
                    "programs": {"vllm": [python, "-m", "tonnage_lab.emulator"]},
                    "environment": environment,
                    "probe_period_scale": 0.1,
                },
                {
                    "image": SHELL,
                    "command": ["/bin/sh", "-c"],
                    "programs": {"py": [python]},
                    "probe_period_scale": 0.1,
                },
            ],
            "restart_delay_scale": 0.05,
            "pre_stop_limit_s": 0.5,
        }
        path = self.folder / "runner.yaml"
        path.write_text(yaml.safe_dump(config))
        command = [python, "-m", "tonnage_lab.runner", "--kubeconfig", self.kubectl.kubeconfig]
        return self.group.start(
            "runner", [*command, "--config", path], environment={"PYTHONPATH": str(OPERATOR)}
        )

    def apply(self, *manifests):
        api_hand.apply(self.api, manifests, namespace=self.namespace)

    def pod(self, name):
        return self.api.get(PODS.path(self.namespace, name))

    def pods(self):
        return list(self.api.list(PODS.path(self.namespace)))

    def run(self, name, **spec):
        """Create a pod on this lab's node and return its name."""
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "labels": {"app": name}},
                "spec": {"nodeSelector": {"pool": self.node}} | spec,
            }
        )
        return name

    def shell(self, name, script, *, container=None, **spec):
        """Run a pod whose one container is this shell script."""
        made = {"name": "main", "image": SHELL, "args": [script]} | (container or {})
        return self.run(name, containers=[made], **spec)

    def log(self, pod, container="main"):
        path = self.folder / "state" / "logs" / self.namespace / pod / f"{container}.log"
        return path.read_text() if path.exists() else ""

    def state(self, name):
        (container,) = self.pod(name)["status"].get("containerStatuses") or [None]
        return container

    def wait(self, name, condition):
        self.kubectl(
            "wait", f"--for={condition}", "--timeout=90s", "-n", self.namespace, f"pod/{name}"
        )

    def is_gone(self, name):
        return self.pod(name) is None


@contextmanager
def a_lab(kubectl, api, namespace, folder, **config):
    """Start a runner, wait for its node, and stop it in the end."""
    made = Lab(kubectl, api, namespace, folder)
    made.start(**config)
    try:
        made.kubectl("wait", "--for=create", "--timeout=90s", f"node/{made.node}")
        made.kubectl("wait", "--for=condition=Ready", "--timeout=90s", f"node/{made.node}")
        yield made
    finally:
        made.group.stop_all()


def a_server(name="server", **changes):
    return {
        "name": name,
        "image": VLLM_IMAGE,
        "args": SERVE,
        "ports": [{"name": "http", "containerPort": 8000}],
        "startupProbe": PROBE | {"failureThreshold": 100},
        "readinessProbe": PROBE,
        "livenessProbe": PROBE,
    } | changes


def a_deployment(lab, replicas, **server):
    labels = {"app": "m", "tonnage.dev/managed": "true"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "m"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "m"}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "nodeSelector": {"pool": lab.node},
                    "containers": [
                        a_server(**{"resources": {"limits": {"nvidia.com/gpu": "2"}}} | server),
                    ],
                },
            },
        },
    }


def a_service():
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "m"},
        "spec": {"selector": {"app": "m"}, "ports": [{"name": "http", "port": 80,
                                                      "targetPort": "http"}]},
    }  # fmt: skip


def ready_addresses(lab):
    slices = lab.api.list(
        ENDPOINT_SLICES.path(lab.namespace), label_selector="kubernetes.io/service-name=m"
    )
    endpoints = itertools.chain.from_iterable(each.get("endpoints") or [] for each in slices)
    return sorted(
        each["addresses"][0] for each in endpoints if each.get("conditions", {}).get("ready")
    )
