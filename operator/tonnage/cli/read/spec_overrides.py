"""A ModelDeployment as options ask for it: changes to a manifest, or a new one."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from tonnage.api.base import KIND
from tonnage.api.spec import MAX_NAME_LENGTH, Scaling
from tonnage.catalog.engine import newest_version
from tonnage.catalog.gpu import CatalogError
from tonnage.catalog.models import built_in_model, full_model_name
from tonnage.cli.console import ManifestError, failing
from tonnage.cli.read.manifest import ManifestObject
from tonnage.cli.read.strict_yaml import read_documents
from tonnage.manifests.names import API_VERSION
from tonnage.sizing.expected import GUESSED_OUTPUT_TOKENS, GUESSED_PROMPT_TOKENS
from tonnage.sizing.provenance import Figure
from tonnage.sizing.workload import EXPONENTIAL_P99
from tonnage.units import tokens

OPTIONS: Final = "the options"
"""Stands where else the name of a file stands."""
MOST_REPLICAS: Final[int] = max(
    getattr(each, "le", 0) for each in Scaling.model_fields["max_replicas"].metadata
)
"""The most that a spec may allow: written where options give no bound, and then none counts."""
ROOM: Final = 1.5
"""What the context length leaves over the mean request, where nobody says how long one may be."""
RATES: Final = ("requestsPerSecond", "tokensPerSecond", "tokensPerDay", "concurrentUsers")
DUTY: Final = "dutyCyclePercent"
_PATH: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*([.][A-Za-z0-9_/-]+)*")

TOKENS: Final = frozenset({
    "contextLength", "engine.maxNumBatchedTokens", "demand.tokensPerDay",
    *(f"demand.{name}.{of}" for name in ("promptTokens", "outputTokens") for of in ("mean", "p99")),
})  # fmt: skip
"""Fields that count tokens."""
Content = Mapping[str, Any]
Change = tuple[str, object]
"""A dotted path below ``spec``, and the value that is put there."""


def change_of(text: str) -> Change:
    """Read ``path=value``; the value is YAML, but a number with decimals stays as it is written.

    Raises:
        ManifestError: it has another form.

    >>> change_of("engine.version=0.30"), change_of("spec.scaling.maxReplicas=4")
    (('engine.version', '0.30'), ('scaling.maxReplicas', 4))
    """
    path, sign, written = text.partition("=")
    path = path.strip().removeprefix("spec.")
    if not sign or not _PATH.fullmatch(path):
        raise ManifestError(f"--set {text}: write PATH=VALUE, such as slo.timeToFirstToken.p99=2s")
    documents = read_documents(written, source=f"--set {path}")
    value = documents[0].content if documents else None
    if path in TOKENS and isinstance(value, str | float):
        with failing(ValueError, where=f"--set {path}: "):
            return path, tokens(written.strip())
    return path, written.strip() if isinstance(value, float) else value


def with_changes(resource: ManifestObject, changes: tuple[Change, ...]) -> ManifestObject:
    """Return a manifest with these changes; lengths are guessed where a rate comes without any.

    Raises:
        ManifestError: a change goes through something that has no fields.
    """
    if not changes:
        return resource
    before = resource.content.get("spec") or {}
    _check_mappings({"spec": before}, ("spec",))
    spec = _spec_with(dict(before), changes)
    _check_mappings(spec, ("demand",))
    guessed = frozenset(_guessed_lengths(spec))
    return replace(resource, content={**resource.content, "spec": spec}, guessed=guessed)


def manifest_of_changes(changes: tuple[Change, ...]) -> ManifestObject:
    """Return a ModelDeployment from options alone, with what it needs beside them."""
    spec = _spec_with({"engine": {}, "scaling": {}}, changes)
    _check_mappings(spec, ("model", "demand", "scaling", "engine"))
    spec["model"] = _with_full_name(spec["model"])
    guessed = {*_guessed_lengths(spec), *_guessed_engine(spec), *_guessed_context(spec)}
    spec["scaling"] = dict(spec["scaling"] or {})
    if "maxReplicas" not in spec["scaling"]:
        spec["scaling"]["maxReplicas"] = MOST_REPLICAS
        guessed.add(Figure.MAX_REPLICAS)
    content = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name_of(str(spec["model"]["id"]))},
        "spec": {key: spec[key] for key in _ORDER if key in spec}
        | {key: value for key, value in spec.items() if key not in _ORDER},
    }
    return ManifestObject(source=OPTIONS, line=0, content=content, guessed=frozenset(guessed))


def _with_full_name(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """Write out the name of a built-in model that is given without its publisher."""
    short = model["id"]
    if not isinstance(short, str) or "/" in short:
        return model
    try:
        return {**model, "id": full_model_name(short)}
    except CatalogError as error:
        raise ManifestError(
            f"spec.model.id: must be ORGANISATION/NAME, as on Hugging Face, or an absolute path "
            f"(read: {short!r}): {error}"
        ) from error


def _check_mappings(content: Mapping[str, Any], fields: tuple[str, ...]) -> None:
    """Refuse a value where fields belong, before any is read or filled in."""
    for field in fields:
        value = content.get(field)
        if value is not None and not isinstance(value, Mapping):
            raise ManifestError(f"{field}: {str(value)[:40]!r} is no object: set its fields")


_ORDER: Final = ("model", "hardware", "contextLength", "slo", "demand", "scaling", "engine")


def name_of(model_id: str) -> str:
    """Return a name for an object after its model.

    >>> name_of("meta-llama/Llama-3.1-8B-Instruct")
    'llama-3-1-8b-instruct'
    """
    words = re.sub("[^a-z0-9]+", "-", model_id.rpartition("/")[2].casefold()).strip("-")
    name = words if words[:1].isalpha() else f"model-{words}"
    return name[:MAX_NAME_LENGTH].rstrip("-")


def _spec_with(spec: dict[str, Any], changes: tuple[Change, ...]) -> dict[str, Any]:
    for path, value in changes:
        spec = _with(spec, path.split("."), value, path)
        if path == "hardware.gpu" and all(other != _SIZE for other, _ in changes):
            spec["hardware"].pop("gpusPerReplica", None)  # of another class: open again
        *parents, field = path.split(".")
        if parents == ["demand"] and field in RATES:
            goes = {*RATES, DUTY} - {field, DUTY if field == "concurrentUsers" else ""}
            spec["demand"] = {key: each for key, each in spec["demand"].items() if key not in goes}
    return spec


_SIZE: Final = "hardware.gpusPerReplica"


def _with(content: Content, path: list[str], value: object, whole: str) -> dict[str, Any]:
    """Return nested mappings with one value replaced, or put where nothing was."""
    key, *below = path
    if not below:
        return {**content, key: value}
    inner = content.get(key)
    if inner is not None and not isinstance(inner, Mapping):
        raise ManifestError(f"--set {whole}: {key} is a scalar, not an object")
    return {**content, key: _with(inner or {}, below, value, whole)}


def _guessed_lengths(spec: dict[str, Any]) -> Iterator[Figure]:
    """Fill in lengths where the demand has none, within the context length."""
    demand = spec.get("demand")
    if not isinstance(demand, Mapping):
        return
    context = spec.get("contextLength")
    room = context if isinstance(context, int) else GUESSED_PROMPT_TOKENS * 2
    guesses = {
        "promptTokens": min(GUESSED_PROMPT_TOKENS, max(1, room // 2)),
        "outputTokens": min(GUESSED_OUTPUT_TOKENS, max(1, room // 4)),
    }
    missing = [name for name in guesses if name not in demand]
    spec["demand"] = {**demand, **{name: {"mean": guesses[name]} for name in missing}}
    if missing:
        yield Figure.LENGTHS


def _guessed_engine(spec: dict[str, Any]) -> Iterator[Figure]:
    engine = spec["engine"]
    if isinstance(engine, Mapping) and not {"version", "image"} & engine.keys():
        spec["engine"] = {**engine, "version": newest_version()}
        yield Figure.ENGINE


def _guessed_context(spec: dict[str, Any]) -> Iterator[Figure]:
    """Fill in the power of two that long requests need, and that leaves room over the mean one.

    If the model has as much; an output without a p99 is long as exponential ones are.
    """
    if "contextLength" in spec:
        return
    demand = spec.get("demand") or {}
    prompt = _tokens(demand.get("promptTokens"), GUESSED_PROMPT_TOKENS, 1)
    output = _tokens(demand.get("outputTokens"), GUESSED_OUTPUT_TOKENS, 1)
    longest = prompt + _tokens(demand.get("outputTokens"), GUESSED_OUTPUT_TOKENS, EXPONENTIAL_P99)
    wanted = 1 << (math.ceil(max(ROOM * (prompt + output), longest)) - 1).bit_length()
    most = longest_context(spec)
    spec["contextLength"] = wanted if most is None else max(prompt + output, min(wanted, most))
    yield Figure.CONTEXT


def _tokens(lengths: object, guess: int, times_mean: float) -> int:
    """Return the p99 of lengths; where there is none, so many times the mean."""
    given = lengths if isinstance(lengths, Mapping) else {}
    p99, mean = given.get("p99"), given.get("mean")
    if isinstance(p99, int) and p99 > 0:
        return p99
    return math.ceil(times_mean * (mean if isinstance(mean, int) and mean > 0 else guess))


def longest_context(spec: Content) -> int | None:
    """Return the positions of the model; None where it is not in the catalogue."""
    try:
        return built_in_model(str(spec["model"]["id"])).max_position_tokens
    except CatalogError:
        return None
