"""What is measured, from the options of the command line: the same request as a manifest's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from tonnage.api.group import KIND
from tonnage.api.objects import parse_model_deployment
from tonnage.catalog.engine import parse_version
from tonnage.catalog.gpu import CatalogError, Gpu, UnknownModelError
from tonnage.cli.answers.calibrating import Subject
from tonnage.cli.console import Failure
from tonnage.manifests.names import API_VERSION
from tonnage.sizing.errors import SizingError
from tonnage.sizing.parallelism.rules import check_parallelism
from tonnage.sizing.request import ask, look_up
from tonnage.sizing.split import Parallelism

LEAST_CONTEXT: Final = 64
"""Tokens; a sweep has no room in less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What the user says that is served."""

    model: str
    gpu: str
    weights: str
    kv_cache: str
    parallelism: Parallelism
    model_config: str | None


def subject_of(
    named: Named, gpus: Mapping[str, Gpu], *, engine_version: str, context_tokens: int
) -> Subject:
    """Return what is measured.

    Raises:
        Failure: a name is unknown, or the engine refuses the split.
    """
    if context_tokens < LEAST_CONTEXT:
        raise Failure(f"max_model_len is {context_tokens}: a sweep needs {LEAST_CONTEXT} at least")
    try:
        major, minor = parse_version(engine_version)
        spec = parse_model_deployment(
            _manifest(named, engine_version=f"{major}.{minor}", context_tokens=context_tokens)
        ).spec
        request = ask(spec, look_up(spec, gpus, model_config=named.model_config))
        check_parallelism(request.shape, request.weights, named.parallelism)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Failure(f"{where}: {first['msg']}") from error
    except UnknownModelError as error:
        raise Failure(f"{error}: give it with --model-config") from error
    except (CatalogError, SizingError) as error:
        raise Failure(str(error)) from error
    return Subject(request=request, parallelism=named.parallelism)


def _manifest(named: Named, *, engine_version: str, context_tokens: int) -> dict[str, object]:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "calibration"},
        "spec": {
            "model": {"id": named.model, "weights": named.weights, "kvCache": named.kv_cache},
            "hardware": {"gpu": named.gpu},
            "contextLength": context_tokens,
            "scaling": {"maxReplicas": 1},
            "engine": {"version": engine_version},
        },
    }
