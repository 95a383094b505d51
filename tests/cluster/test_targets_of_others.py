"""Deployments as llm-d, KServe and production-stack ship them, and the monitors that they bring.

Each has the label by which its owner agrees, which all three take as a value, and no other change.
"""

import copy

import pytest
import yaml

import site_lab
from site_lab import QUICK_TRUTH, a_model, a_site, a_tenant, until
from tonnage_lab.prometheus import Monitor

pytestmark = site_lab.pytestmark

LLM_D = """
# llm-d/llm-d guides/inference-scheduling/ms-inference-scheduling/values.yaml, by the templates of
# llm-d-incubation/llm-d-modelservice 0.4 (examples/output-pvc-hf.yaml).
kind: Deployment
metadata:
  name: ms-inference-scheduling-llm-d-modelservice-decode
  labels:
    helm.sh/chart: llm-d-modelservice-v0.4.0
    app.kubernetes.io/version: "v0.3.0"
    app.kubernetes.io/managed-by: Helm
spec:
  selector:
    matchLabels: &labels
      llm-d.ai/inference-serving: "true"
      llm-d.ai/guide: inference-scheduling
      llm-d.ai/model: Llama-3.3-70B-Instruct
      llm-d.ai/role: decode
  template:
    metadata: {labels: *labels}
    spec:
      volumes:
        - {name: metrics-volume, emptyDir: {}}
        - {name: shm, emptyDir: {medium: Memory, sizeLimit: 20Gi}}
      containers:
        - name: vllm
          image: ghcr.io/llm-d/llm-d-cuda:v0.5.0
          command: [vllm, serve]
          args:
            - meta-llama/Llama-3.3-70B-Instruct
            - --port
            - "8000"
            - --served-model-name
            - meta-llama/Llama-3.3-70B-Instruct
            - --tensor-parallel-size
            - "2"
            - --disable-uvicorn-access-log
            - --gpu-memory-utilization=0.95
            - --max-model-len=8192
          env:
            - {name: TP_SIZE, value: "2"}
            - {name: DP_SIZE, value: "1"}
            - {name: VLLM_LOGGING_LEVEL, value: INFO}
          ports: [{containerPort: 8000, name: vllm, protocol: TCP}]
          resources: {limits: {nvidia.com/gpu: "2"}}
          volumeMounts:
            - {name: metrics-volume, mountPath: /.config}
            - {name: shm, mountPath: /dev/shm}
          readinessProbe: {httpGet: {path: /v1/models, port: vllm}, periodSeconds: 5}
"""
KSERVE = """
# kserve/kserve config/llmisvc/config-llm-template.yaml, as pkg/controller/v1alpha1/llmisvc
# workload_single_node.go makes a Deployment of it: LLMInferenceService controls it.
kind: Deployment
metadata:
  name: llama-kserve
  labels: &labels
    app.kubernetes.io/component: llminferenceservice-workload
    app.kubernetes.io/name: llama
    app.kubernetes.io/part-of: llminferenceservice
spec:
  selector: {matchLabels: *labels}
  template:
    metadata: {labels: *labels}
    spec:
      terminationGracePeriodSeconds: 30
      volumes:
        - {name: home, emptyDir: {}}
        - {name: dshm, emptyDir: {medium: Memory, sizeLimit: 1Gi}}
        - {name: model-cache, emptyDir: {}}
      containers:
        - name: main
          image: ghcr.io/llm-d/llm-d:0.0.8
          command: [vllm, serve, meta-llama/Llama-3.3-70B-Instruct]
          args:
            - --served-model-name
            - meta-llama/Llama-3.3-70B-Instruct
            - --port
            - "8000"
            - --tensor-parallel-size
            - "2"
            - --max-model-len
            - "8192"
          env:
            - {name: HOME, value: /home}
            - {name: VLLM_LOGGING_LEVEL, value: INFO}
            - {name: HF_HUB_CACHE, value: /models}
          ports: [{containerPort: 8000, protocol: TCP}]
          resources: {limits: {nvidia.com/gpu: "2"}}
          terminationMessagePolicy: FallbackToLogsOnError
          readinessProbe: {httpGet: {path: /health, port: 8000}, periodSeconds: 10}
          volumeMounts:
            - {name: home, mountPath: /home}
            - {name: dshm, mountPath: /dev/shm}
            - {name: model-cache, mountPath: /models}
"""
PRODUCTION_STACK = """
# vllm-project/production-stack helm/templates/deployment-vllm-multi.yaml.
kind: Deployment
metadata:
  name: vllm-llama3-deployment-vllm
  labels: &labels
    model: llama3
    helm-release-name: vllm
    environment: test
    release: test
spec:
  progressDeadlineSeconds: 1200
  selector: {matchLabels: *labels}
  template:
    metadata: {labels: *labels}
    spec:
      volumes:
        - {name: shm, emptyDir: {medium: Memory, sizeLimit: 20Gi}}
      containers:
        - name: vllm
          image: lmcache/vllm-openai:v0.3.9
          command:
            - vllm
            - serve
            - meta-llama/Llama-3.3-70B-Instruct
            - --host
            - 0.0.0.0
            - --port
            - "8000"
            - --no-enable-prefix-caching
            - --max-model-len
            - "8192"
            - --dtype
            - bfloat16
            - --tensor-parallel-size
            - "2"
            - --max-num-seqs
            - "64"
            - --gpu_memory_utilization
            - "0.92"
          env:
            - {name: HF_HOME, value: /tmp}
            - {name: LMCACHE_LOG_LEVEL, value: DEBUG}
          ports:
            - {name: container-port, containerPort: 8000}
            - {name: zmq-port, containerPort: 55555}
            - {name: ucx-port, containerPort: 9999}
          resources:
            requests: {nvidia.com/gpu: "2"}
            limits: {nvidia.com/gpu: "2"}
          readinessProbe: {httpGet: {path: /health, port: 8000}, periodSeconds: 10}
          volumeMounts:
            - {name: shm, mountPath: /dev/shm}
"""
AGREED = {"tonnage.dev/managed": "true"}
MONITORS = (
    Monitor("llm-d", {"llm_d_ai_inference_serving": "true"}, "vllm"),
    Monitor("kserve", {"app_kubernetes_io_part_of": "llminferenceservice"}, "", "kserve_"),
    Monitor("production-stack", {"environment": "test", "release": "test"}, "container-port"),
)


@pytest.fixture(scope="module")
def site(tmp_path_factory, programs):
    """A site with the monitors of all three, and the setting that KServe's needs."""
    settings = {"tickS": 1, "coldStartS": 2, "scaleDownWindowS": 3, "statusIntervalS": 1}
    settings |= {"otherSeries": {"prefixes": ["kserve_"]}}
    folder = tmp_path_factory.mktemp("targets")
    with a_site(
        folder, programs, truth=QUICK_TRUTH, scrape_interval_s=1, settings=settings,
        monitors=MONITORS,
    ) as made:  # fmt: skip
        yield made


@pytest.fixture
def tenant(site):
    with a_tenant(site) as made:
        yield made


def controller(tenant):
    """Return a reference to what controls a Deployment: it has to be there, or that goes too."""
    name = tenant.namespace
    uid = tenant.kubectl("get", "namespace", name, "-o", "jsonpath={.metadata.uid}")
    return {"apiVersion": "v1", "kind": "Namespace", "name": name, "uid": uid, "controller": True}


@pytest.mark.parametrize(
    ("text", "slots"),
    [(LLM_D, 1 << 10), (KSERVE, 1 << 10), (PRODUCTION_STACK, 64)],
    ids=["llm-d", "KServe", "production-stack"],
)
def test_a_target_is_scaled_by_what_its_own_monitor_says_and_left_alone_otherwise(
    tenant, text, slots
):
    target = {"apiVersion": "apps/v1"} | yaml.safe_load(text)
    target = copy.deepcopy(target)  # no label is another's by an alias of YAML
    name = target["metadata"]["name"]
    for metadata in (target["metadata"], target["spec"]["template"]["metadata"]):
        metadata["labels"] = {**metadata["labels"], **AGREED}
    if text is KSERVE:
        target["metadata"]["ownerReferences"] = [controller(tenant)]
    tenant.apply(target)
    before = tenant.deployment(name)
    model = a_model(
        scaleTarget={"name": name, "engineVersion": "0.33"},
        model={"id": "meta-llama/Llama-3.3-70B-Instruct"},
        hardware={"gpu": "H200", "gpusPerReplica": 2},
        scaling={"minReplicas": 2, "maxReplicas": 4},
    )
    del model["spec"]["engine"]
    tenant.apply(model)
    until(lambda: tenant.num_ready(name) == 2, "two replicas are Ready", told=tenant.told)
    until(
        lambda: tenant.condition("MetricsAvailable").get("status") == "True",
        "its monitor's series are read",
        told=tenant.told,
    )

    assert tenant.deployment(name)["spec"] == before["spec"] | {"replicas": 2}
    assert tenant.status()["plan"]["maxNumSeqs"] == slots
    assert tenant.condition("PlanValid")["status"] == "True"
