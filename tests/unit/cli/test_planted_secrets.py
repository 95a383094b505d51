"""Secrets planted wherever an object, a page or a log has room: none is in a bug report."""

import base64
import itertools
import json

from diagnose_builders import (
    ANSWERS,
    OPERATORS_POD,
    OWN,
    POD,
    SERVING,
    Cluster,
    files_of,
    items,
    named,
)
from fleet_builders import a_pod_body
from tonnage.fleet.pods import pod_view

FORMS = ("s3cr3t-value-{}", "hf_AbCdEfGhIjKlMnOp{}", "4815162342{}", "kim+{}/Tr0ub4dor")


class Planted:
    """Gives out secrets, each another, in turn of four forms."""

    def __init__(self):
        self.secrets = []
        self._forms = itertools.cycle(FORMS)

    def __str__(self):
        self.secrets.append(next(self._forms).format(len(self.secrets) + 10))
        return self.secrets[-1]


def a_container(planted, name="vllm"):
    header = {"name": "Authorization", "value": f"Bearer {planted}"}
    return {
        "name": name,
        "image": "vllm/vllm-openai:v0.33.0",
        "command": ["sh", "-c", f"AWS_SECRET_ACCESS_KEY={planted} vllm serve --api-key {planted}"],
        "args": [
            "meta-llama/Llama-3.1-8B", "--max-num-seqs", "48", "--api-key", str(planted),
            f"--api-key={planted}", "-p", str(planted), f"--hf-overrides={{\"a\": \"{planted}\"}}",
            f"--middleware={planted}", f"--dtype={planted}", str(planted),
        ],
        "env": [
            {"name": "HF_TOKEN", "value": str(planted)},
            {"name": "CONFIG", "value": json.dumps({"a": json.dumps({"b": str(planted)})})},
            {"name": f"X_{planted}", "value": "1"},
            {"name": "A", "valueFrom": {"secretKeyRef": {"name": str(planted), "key": "k"}}},
        ],
        "envFrom": [{"secretRef": {"name": str(planted)}, "prefix": str(planted)}],
        "workingDir": f"/{planted}",
        "ports": [{"name": "http", "containerPort": 8000}],
        "startupProbe": {"httpGet": {"path": f"/?t={planted}", "httpHeaders": [header]}},
        "readinessProbe": {"exec": {"command": ["curl", "-u", f"me:{planted}"]}},
        "livenessProbe": {"httpGet": {"host": str(planted), "path": "/health"}},
        "lifecycle": {
            "preStop": {"exec": {"command": ["sh", "-c", f"curl -H 'X-Key: {planted}' x"]}},
            "postStart": {"httpGet": {"httpHeaders": [{"name": "Cookie", "value": str(planted)}]}},
        },
        "volumeMounts": [{"name": "cache", "mountPath": f"/{planted}", "subPath": str(planted)}],
        "resources": {"limits": {"nvidia.com/gpu": "8", f"a/{planted}": str(planted)}},
    }  # fmt: skip


def a_pod_spec(planted):
    return {
        "containers": [a_container(planted), a_container(planted, "sidecar")],
        "initContainers": [a_container(planted, "fetch")],
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": [str(planted)]}],
        "imagePullSecrets": [{"name": str(planted)}],
        "nodeSelector": {"team": str(planted)},
        "dnsConfig": {"searches": [str(planted)]},
        "volumes": [
            {"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}},
            {"name": "a", "secret": {"secretName": str(planted)}},
            {"name": "b", "csi": {"driver": "x", "volumeAttributes": {"password": str(planted)}}},
            {"name": "c", "flexVolume": {"driver": "x", "options": {"key": str(planted)}}},
            {"name": "d", "iscsi": {"initiatorName": str(planted), "chapAuthSession": True}},
            {"name": "e", "projected": {"sources": [{"secret": {"name": str(planted)}}]}},
            {"name": "f", "azureFile": {"shareName": str(planted)}},
        ],
    }


def metadata(planted, name):
    spec = {"pods": {"env": [{"name": "A", "secretKeyRef": {"name": str(planted)}}]}}
    applied = json.dumps({"spec": {"env": [{"value": str(planted)}]}})
    return {
        "name": name,
        "namespace": "serving",
        "uid": "3f2504e0-4f89-11d3-9a0c-0305e82c3301",
        "labels": {"tonnage.dev/managed": "true", "team": str(planted), str(planted): "x"},
        "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": applied,
            "team.example/note": str(planted),
            "team.example/packed": base64.b64encode(applied.encode()).decode(),
            "tonnage.dev/spec": json.dumps(spec | {str(planted): str(planted)}),
            "tonnage.dev/spec-digest": str(planted),
            "tonnage.dev/approve": str(planted),
        },
        "managedFields": [{"manager": str(planted)}],
        "finalizers": [f"x/{planted}"],
    }


def words(planted):
    """Text as programs write it, with a secret in each line."""
    return [
        f"HF_TOKEN={planted}",
        json.dumps({"level": "info", "password": str(planted), "n": 1}),
        json.dumps({"a": json.dumps({"api_key": str(planted)})}),
        f"level=info msg=login token={planted} n=1",
        f"GET http://me:{planted}@hub/x",
        f"GET /x?sig={planted}",
        f"curl -u me:{planted} https://x",
        f"the password is {planted} for now",
        f"Authorization: Bearer {planted}",
        f"-----BEGIN PRIVATE KEY-----\\n{planted}\\n-----END PRIVATE KEY-----",
        f"postgres://me:{planted}@db/x",
        f"mysql -p {planted}",
        f"<token>{planted}</token>",
        f"PASSWORD = '{planted}'",
    ]


def a_status(planted):
    [ending, *rest] = words(planted)
    terminated = {"reason": "Error", "exitCode": 1, "message": f"loading\n{ending}"}
    waiting = {"reason": "CreateContainerError", "message": f"mount: password={planted}"}
    return {
        "phase": "Pending",
        "hostIP": str(planted),
        "message": rest[0],
        "conditions": [{"type": "PodScheduled", "status": "False", "message": rest[1]}],
        "containerStatuses": [
            {"name": "vllm", "state": {"waiting": waiting}, "lastState": {"terminated": terminated}}
        ],
    }


def answers(planted):
    pod = {"metadata": metadata(planted, "llama-x"), "spec": a_pod_spec(planted)}
    template = {"metadata": metadata(planted, "t"), "spec": a_pod_spec(planted)}
    settings = f"tickS: 15\nprometheusUrl: http://me:{planted}@host\npassword: {planted}\n"
    headers = ", ".join(f'"X-{planted}": "{planted}"' for _ in range(2))
    settings += f"prometheusAuth: {{headers: {{{headers}}}}}\n"
    spec = {
        "model": {"id": "meta-llama/Llama-3.1-8B"},
        "engine": {"version": "0.33", "args": [f"--reasoning-parser={planted}"]},
        "pods": {
            "huggingFaceTokenSecret": {"name": str(planted), "key": str(planted)},
            "env": [{"name": "A", "secretKeyRef": {"name": str(planted), "key": "k"}}],
            "annotations": {"a": str(planted)},
            "labels": {"a": str(planted)},
        },
        str(planted): str(planted),
    }
    conditions = [
        {"type": "Ready", "status": "False", "reason": "A", "message": each}
        for each in words(planted)
    ]
    model = {
        "metadata": metadata(planted, "llama"),
        "spec": spec,
        "status": {"conditions": conditions, "display": {"problem": f"token={planted}"}},
    }
    events = [
        {"regarding": {"name": "llama-x"}, "reason": "BackOff", "note": each}
        for each in words(planted)
    ]
    other = {"regarding": {"name": "llama-x"}, "reason": "Noted", "note": str(planted)}
    metrics = [
        f'tonnage_problem{{reason="{planted}",token="{planted}"}} 1.0',
        f'app_secret{{value="{planted}"}} 1.0',
        "tonnage_leader 1.0",
    ]
    log = "\n".join(["event=decision wanted=4", *words(planted)])
    return ANSWERS | {
        f"/apis/tonnage.dev/v1alpha1/{SERVING}/modeldeployments": items(model),
        f"/apis/apps/v1/{SERVING}/deployments": items(
            {"metadata": metadata(planted, "llama"), "spec": {"template": template}}
        ),
        f"/api/v1/{SERVING}/pods": items(pod | {"status": a_status(planted)}),
        f"/apis/events.k8s.io/v1/{SERVING}/events": items(*events, other),
        f"{OWN}/pods": items(OPERATORS_POD | {"metadata": metadata(planted, POD)}),
        f"{OWN}/configmaps/tonnage": named("tonnage", data={"settings.yaml": settings}),
        f"{OWN}/configmaps/tonnage-calibration": named(
            "tonnage-calibration",
            data={"calibration.json": json.dumps({"version": 3, str(planted): str(planted)})},
        ),
        f"{OWN}/pods/{POD}/log": log,
        f"{OWN}/pods/{POD}%3A8081/proxy/metrics": "\n".join(metrics),
    }


def test_none_is_in_any_file_of_the_report(tmp_path):
    planted = Planted()
    planned = answers(planted)
    assert len(planted.secrets) > 240

    result, files = files_of(Cluster(planned), tmp_path)

    assert result.exit_code == 0
    everything = json.dumps(files) + json.dumps(files, ensure_ascii=False)
    assert [each for each in planted.secrets if each in everything] == []


def test_what_a_report_needs_is_in_it_beside_them(tmp_path):
    _, files = files_of(Cluster(answers(Planted())), tmp_path)

    pods = files["pods.yaml"]
    assert "image: vllm/vllm-openai:v0.33.0" in pods
    assert "meta-llama/Llama-3.1-8B" in pods
    assert "--max-num-seqs=48" in pods
    assert "name: HF_TOKEN" in pods
    assert "nvidia.com/gpu: '8'" in pods
    assert "exitCode: 1" in pods
    assert "tickS: 15" in files["operator/settings.yaml"]
    assert "event=decision wanted=4" in files[f"operator/{POD}.log"]
    assert "tonnage_leader 1.0" in files[f"operator/{POD}.metrics.txt"]
    assert "Events of other reasons: 1" in files["about.yaml"]


def test_none_is_in_why_a_pod_does_not_start():
    planted = Planted()
    seen = []
    for line in words(planted):
        terminated = {"reason": "Error", "exitCode": 1, "message": f"loading\n{line}"}
        crash = {
            "name": "vllm",
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": terminated},
        }
        waiting = {"reason": "CreateContainerError", "message": line}
        waits = {"name": "vllm", "state": {"waiting": waiting}}
        stuck = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        for status in (
            {"containerStatuses": [crash]},
            {"containerStatuses": [waits]},
            {"conditions": [stuck | {"message": line}]},
        ):  # fmt: skip
            view = pod_view(a_pod_body("a", ready_for_s=None, **status))
            assert view.trouble or view.unschedulable
            seen += [str(view.trouble), str(view.unschedulable)]

    assert [each for each in planted.secrets if each in " ".join(seen)] == []
