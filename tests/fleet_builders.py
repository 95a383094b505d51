"""ModelDeployments as the API server holds them, and what is made of them."""

import copy
from functools import cache
from pathlib import Path

import yaml

from tonnage.api.objects import parse_model_deployment
from tonnage.catalog.gpu import built_in_gpus
from tonnage.manifests.children import Site
from tonnage.sizing.known import look_up
from tonnage.sizing.plan import size
from tonnage.sizing.question import ask

EXAMPLES = Path(__file__).parents[1] / "deploy" / "examples"
SITE = Site(has_pod_monitors=True, scrape_interval_s=15)
SPEC = {
    "model": {"id": "meta-llama/Llama-3.3-70B-Instruct", "weights": "fp8"},
    "hardware": {"gpu": "H200", "gpusPerReplica": 2},
    "contextLength": 8192,
    "slo": {"timeToFirstToken": {"p95": "2s"}, "timePerOutputToken": {"p95": "50ms"}},
    "demand": {
        "requestsPerSecond": 4,
        "promptTokens": {"mean": 4000, "p99": 7000},
        "outputTokens": {"mean": 1000},
    },
    "scaling": {"minReplicas": 1, "maxReplicas": 8},
    "engine": {"version": "0.33"},
}


def a_manifest(name="llama", *, namespace="serving", uid=None, generation=1, **spec):
    """A ModelDeployment; a field of the spec that is given as None is left out."""
    fields = copy.deepcopy(SPEC) | spec
    return {
        "apiVersion": "tonnage.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or f"uid-of-{name}",
            "generation": generation,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {key: value for key, value in fields.items() if value is not None},
    }


def a_model(name="llama", **changes):
    return parse_model_deployment(a_manifest(name, **changes))


@cache
def example(file):
    """One of the examples that ship with Tonnage."""
    manifest = yaml.safe_load((EXAMPLES / f"{file}.yaml").read_text())
    manifest["metadata"] |= {"namespace": "serving", "uid": "uid-of-the-example"}
    return parse_model_deployment(manifest)


def a_question_of(model):
    return ask(model.spec, look_up(model.spec, built_in_gpus()))


def a_sizing(model=None, **spec):
    """The answer of the arithmetic to a model, ``a_model`` unless another is given."""
    return size(a_question_of(model or a_model(**spec)))
