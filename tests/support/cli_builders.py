"""Manifests, and what is asked of pages, for the tests of the command line."""

import textwrap
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

import yaml
from click.testing import CliRunner

from tonnage.api.objects import parse_model_deployment
from tonnage.catalog.gpu import built_in_gpus
from tonnage.cli.commands.app import program
from tonnage.cli.read.manifest import parse
from tonnage.cli.read.spec_overrides import manifest_of_changes
from tonnage.cli.results.comparing import compare_classes
from tonnage.cli.results.planning import PlanContext, Planned, answer, request_of
from tonnage.sizing.memory.ceiling import BudgetPart, MemoryBudget
from tonnage.units import GIB

SMALL = """\
apiVersion: tonnage.dev/v1alpha1
kind: ModelDeployment
metadata:
  name: small
  namespace: serving
spec:
  model:
    id: meta-llama/Llama-3.1-8B-Instruct
  hardware:
    gpu: H100
    gpusPerReplica: 1
  contextLength: 8192
  slo:
    timeToFirstToken: {p95: 2s}
    timePerOutputToken: {p95: 50ms}
  demand:
    requestsPerSecond: 8
    promptTokens: {mean: 2000, p99: 4000}
    outputTokens: {mean: 200}
  scaling: {maxReplicas: 8}
  engine: {version: "0.33"}
"""
LLAMA = """\
apiVersion: tonnage.dev/v1alpha1
kind: ModelDeployment
metadata:
  name: llama-70b
  namespace: serving
spec:
  model:
    id: meta-llama/Llama-3.3-70B-Instruct
    weights: fp8
  hardware:
    gpu: H200
    gpusPerReplica: 2
  contextLength: 8192
  slo:
    timeToFirstToken: {p95: 2s}
    timePerOutputToken: {p95: 50ms}
  demand:
    requestsPerSecond: 4
    promptTokens: {mean: 4000, p99: 7000}
    outputTokens: {mean: 1000}
  scaling: {maxReplicas: 8}
  engine: {version: "0.33"}
"""

CONFIG_JSON = """\
{
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
  "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
  "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
  "tie_word_embeddings": false, "max_position_embeddings": 8192, "rms_norm_eps": 1e-05
}
"""


def llama(*changes):
    """Return the example with (old, new) text replaced; every old text must stand in it."""
    text = LLAMA
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


def a_config_map(*, name="my-model", namespace="serving", data=None):
    manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": {"config.json": CONFIG_JSON} if data is None else data,
    }
    return yaml.safe_dump(manifest)


def a_deployment(*, image="vllm/vllm-openai:v0.33.0", args=None):
    """Return the Deployment that a scaleTarget named my-vllm means."""
    flags = ["--max-num-seqs=48", "--max-num-batched-tokens", "8192", "--tensor-parallel-size=2"]
    container = {"name": "vllm", "image": image, "args": flags if args is None else args}
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "my-vllm", "namespace": "serving"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    return yaml.safe_dump(manifest)


def groups_that_exist(*, leader=True):
    """Return the LeaderWorkerSet of two nodes that a scaleTarget named my-vllm means."""
    manifest = yaml.safe_load(a_deployment(args=[*OVER_NODES, "--node-rank=0"]))
    pod = manifest["spec"].pop("template")
    template = {"size": 2, "workerTemplate": pod} | ({"leaderTemplate": pod} if leader else {})
    manifest["spec"]["leaderWorkerTemplate"] = template
    manifest |= {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
    return yaml.safe_dump(manifest)


OVER_NODES = (
    "--max-num-seqs=48", "--max-num-batched-tokens=8192", "-tp=8", "-pp=2", "--nnodes=2",
)  # fmt: skip
SCALED = llama(
    ('  engine: {version: "0.33"}\n', "  scaleTarget: {name: my-vllm}\n"),
    ("    gpusPerReplica: 2\n", ""),
)
CONFIGURED = llama(
    (
        "    id: meta-llama/Llama-3.3-70B-Instruct\n    weights: fp8\n",
        textwrap.indent(
            "id: my/model\nconfig: {configMapKeyRef: {name: my-model, key: config.json}}\n", "    "
        ),
    )
)


def run(*arguments, text=None, **more):
    """Run the command line in this process; ``text``: what stands on standard input."""
    environment = {"COLUMNS": "100", "KUBECONFIG": "/nowhere", **more}
    return CliRunner().invoke(
        program, [str(each) for each in arguments], input=text, env=environment
    )


def plan(*texts, options=()):
    """Run ``tonnage plan -f -`` on these documents."""
    return run("plan", "-f", "-", *options, text="---\n".join(texts))


def answered(text=LLAMA, **terms):
    """Return the plan of a manifest that has one."""
    found = answer(
        parse_model_deployment(yaml.safe_load(text)), PlanContext(gpus=built_in_gpus(), **terms)
    )
    assert isinstance(found, Planned)
    return found


def a_comparison(text=LLAMA, names=("H100", "H200", "L4", "GH200"), *, are_named=True, **changes):
    """Return the classes compared for a manifest; ``changes`` are made to every class."""
    gpus = built_in_gpus()
    deployment = parse_model_deployment(yaml.safe_load(text))
    request = request_of(deployment.spec, PlanContext(gpus=gpus))
    changed = [replace(gpus[name], **changes) for name in names]
    return compare_classes(deployment, request, changed, are_named=are_named)


def a_budget(*, spread_bytes=0.0):
    """Return 100 GiB: 30 weights, 10 activations, 50 cache, 10 unused."""
    return MemoryBudget(
        total_bytes=100 * GIB,
        utilization_fraction=0.9,
        parts=(
            BudgetPart(name="weights", num_bytes=30 * GIB),
            BudgetPart(name="activations", num_bytes=10 * GIB, spread_bytes=spread_bytes),
        ),
    )


VOID = {"meta", "br"}


class Tags(HTMLParser):
    """Reads a page as HTML; every tag must be closed in its turn."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.attributes = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def tree(text):
    """Return a page read as XML."""
    assert text.startswith("<!DOCTYPE html>\n")
    return ET.fromstring(text.partition("\n")[2])  # noqa: S314  (our own output)


def words(element):
    return " ".join(" ".join(element.itertext()).split())


def assert_stands_alone(text):
    """Assert that a page asks for nothing, runs nothing, and names everything once."""
    tags = Tags(text)
    links = [value for name, value in tags.attributes if name in {"href", "src", "xlink:href"}]
    names = [value for name, value in tags.attributes if name == "id"]

    assert not {"script", "link", "img", "iframe", "object"} & set(tags.seen)
    assert [link for link in links if not link.startswith("#")] == []
    assert text.count("url(") == text.count("url(#")
    assert "@import" not in text
    assert "://" not in text
    assert len(names) == len(set(names))
    assert {link[1:] for link in links} <= set(names)
    assert "default-src 'none'" in text


def a_request_of(model_id, gpu):
    """Return the request of a model on a class, as options ask it."""
    changes = (("model.id", model_id), ("hardware.gpu", gpu), ("engine.version", "0.33"))
    spec = parse(manifest_of_changes(changes)).spec
    return request_of(spec, PlanContext(gpus=built_in_gpus()))
