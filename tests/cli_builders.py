"""Manifests for the tests of the command line."""

import textwrap

import yaml
from click.testing import CliRunner

from tonnage.cli.commands.app import program

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
