"""``tonnage render``: what would be applied, the same every time, as the API server takes it."""

import json
import shlex

import kubernetes_validate
import pytest
import yaml

from cli_builders import SCALED, a_deployment, llama, run


def render(*texts, options=()):
    return run("render", "-f", "-", *options, text="---\n".join(texts))


def manifests(result):
    return [each for each in yaml.safe_load_all(result.stdout) if each]


def test_prints_what_the_operator_would_apply():
    result = render(llama())

    assert result.exit_code == 0
    assert [each["kind"] for each in manifests(result)] == ["Deployment", "Service", "PodMonitor"]
    assert result.stdout.startswith("# serving/llama-70b: 4 replicas of 2 GPUs (TP2) on H200")


def test_replicas_and_an_owner_that_no_file_has_are_left_out():
    deployment = manifests(render(llama()))[0]

    assert "replicas" not in deployment["spec"]
    assert "ownerReferences" not in deployment["metadata"]


def test_is_what_the_api_server_takes():
    for manifest in manifests(render(llama(), options=["--no-pod-monitor"])):
        kubernetes_validate.validate(manifest, "1.33", strict=True)


def test_without_a_pod_monitor_pods_are_annotated():
    deployment, service = manifests(render(llama(), options=["--no-pod-monitor"]))

    assert service["kind"] == "Service"
    assert "prometheus.io/scrape" in deployment["spec"]["template"]["metadata"]["annotations"]


def test_is_the_same_every_time():
    assert render(llama()).stdout == render(llama()).stdout


def test_the_serve_line_is_what_the_container_runs():
    line = render(llama(), options=["--serve"]).stdout
    [container] = manifests(render(llama()))[0]["spec"]["template"]["spec"]["containers"]

    assert shlex.split(line) == ["vllm", "serve", *container["args"]]
    assert "--max-num-seqs 63" in line


def test_as_json_it_is_one_list():
    content = json.loads(render(llama(), options=["-o", "json"]).stdout)

    assert content["kind"] == "List"
    assert [each["kind"] for each in content["items"]] == ["Deployment", "Service", "PodMonitor"]


def test_what_protects_the_pods_comes_before_them():
    pods = "pods: {disruptionBudget: {maxUnavailable: 1}, networkPolicy: {egressPorts: [443]}}"
    made = manifests(render(llama(("contextLength: 8192", f"contextLength: 8192\n  {pods}"))))

    kinds = [each["kind"] for each in made]
    assert kinds[:3] == ["NetworkPolicy", "PodDisruptionBudget", "Deployment"]
    assert all("ownerReferences" not in each["metadata"] for each in made)


def test_of_a_scale_target_nothing_is_applied():
    result = render(SCALED, a_deployment())

    assert manifests(result) == []
    assert "leaves its template alone" in result.stderr


@pytest.mark.parametrize(
    ("change", "said", "exit_code"),
    [
        ((("gpu: H200", "gpu: L4"),), "DoesNotFit", 2),
        ((("weights: fp8", "weights: mxfp4"),), "NotServable", 2),
        ((("contextLength: 8192", "contextLength: none"),), "contextLength", 3),
    ],
)
def test_what_cannot_be_applied_is_refused_by_name(change, said, exit_code):
    result = render(llama(*change))

    assert result.exit_code == exit_code
    assert said in result.stderr
    assert manifests(result) == []


def test_what_auto_chose_of_kv_offload_is_a_note():
    auto = "    kvOffload: {mode: Auto, gib: 300, workingSetTokens: 900000}\n"
    result = render(llama(("  hardware:\n", f"{auto}  hardware:\n")))

    [deployment, *_] = manifests(result)
    [container] = deployment["spec"]["template"]["spec"]["containers"]

    assert "--kv-offloading-size" in container["args"]
    assert "KV offload: Auto: on, 275 GiB a replica; worth it: " in result.stderr
