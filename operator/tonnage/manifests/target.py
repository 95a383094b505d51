"""A workload that somebody else made: which engine runs in it, and with which flags."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tonnage.api.pods import ScaleTarget
from tonnage.api.spec import Spec
from tonnage.catalog.engine import (
    batch_defaults,
    image_version,
    is_vllm_image,
    likely_version,
    positions_of,
)
from tonnage.catalog.gpu import CatalogError, check_resources
from tonnage.catalog.models import FLAG as OVERRIDES
from tonnage.catalog.models import built_in_model
from tonnage.catalog.parameters import num_parameters
from tonnage.catalog.shape import Assumption, ModelShape, StateAttention
from tonnage.manifests.arguments import (
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    engine_flags,
    flags_in,
    without_capacity_flags,
)
from tonnage.manifests.command import CommandError, Surroundings, engine_words
from tonnage.manifests.names import CONTAINER, Workload
from tonnage.sizing.checks import with_running_cache
from tonnage.sizing.options import Adapters, Speculation, adapters_in, are_counted, switches_in
from tonnage.sizing.provenance import Figure, Input, Origin, assumed_inputs, with_changed
from tonnage.sizing.request import Flags, SizingRequest, digest_of
from tonnage.units import count_of, engine_integer

GPUS: Final = re.compile(r"[a-z0-9.-]+/(gpu|mig-[a-z0-9.]+)(\.shared)?")
ANSWERING: Final = frozenset(
    {
        *("--data-parallel-hybrid-lb", "-dph", "--data-parallel-external-lb", "-dpe"),
        *("--data-parallel-multi-port-external-lb", "-dpm", "--data-parallel-rank", "-dpn"),
        *("--data-parallel-start-rank", "-dpr"),
    }
)
"""With these each process of a group that is not headless has an API server."""
AUTO: Final = frozenset({"auto", "-1"})
"""Values of ``--max-model-len``: the longest context that the cache holds."""
BATCHED_RANKS: Final = frozenset({"deepep_low_latency", "nixl_ep"})
BATCHED_RANKS_TOKENS: Final = 256
MOST_CONTEXT_TOKENS: Final = 16_777_216
"""As ``contextLength`` may be at most."""
LONGER: Final = (OVERRIDES, "--rope-scaling")
"""With these a model has other positions than its checkpoint says."""


class RefusedError(Exception):
    """An object that is understood and not acted on; the reason is a condition's reason."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetEngine:
    """The engine in a workload, as its manifest has it."""

    image: str = ""
    arguments: tuple[str, ...] = ()
    """The words that the parser of ``vllm serve`` gets."""
    problem: str = ""
    """Why they cannot be read; empty: they are."""
    workers_answer: bool = False
    """Each pod of its group has an API server."""
    config_maps: tuple[str, ...] = ()
    """Names of those that decide these words."""
    resources: tuple[str, ...] = ()
    """Names of what its container has limits of."""


UNREAD: Final = TargetEngine()


def engine_of(
    workload: Workload,
    template: Mapping[str, Any],
    config_maps: Mapping[str, Mapping[str, Any]] | None = None,
) -> TargetEngine:
    """Read the engine in the template of a workload; of a group the leader's."""
    engine, *workers = (
        target_engine(each.get("spec") or {}, size=template.get("size", 1), config_maps=config_maps)
        for each in workload.templates(template)
    )
    return replace(engine, workers_answer=any(workers_answer(engine, each) for each in workers))


def target_engine(
    pod_spec: Mapping[str, Any],
    *,
    size: int = 1,
    config_maps: Mapping[str, Mapping[str, Any]] | None = None,
) -> TargetEngine:
    """Read the engine of a pod: the container ``vllm``, else the one with GPUs, else the first.

    ``size``: pods of its group. ``config_maps``: the data of those that are known, by name.
    """
    containers = [
        each for each in pod_spec.get("containers") or () if isinstance(each, Mapping)
    ] or [{}]
    named = (each for each in containers if each.get("name") == CONTAINER)
    container = next(named, None) or next(
        (each for each in containers if has_gpus(_limited(each))), containers[0]
    )
    image = container.get("image")
    image = image if isinstance(image, str) else ""
    around = Surroundings(
        config_maps=config_maps or {},
        volumes={
            str(each.get("name")): each
            for each in pod_spec.get("volumes") or ()
            if isinstance(each, Mapping)
        },
        variables={"LWS_GROUP_SIZE": str(size), "LWS_WORKER_INDEX": "0"},
        is_vllm=is_vllm_image(image),
    )
    words, problem = tuple[str, ...](), ""
    try:
        words = engine_words(container, around)
    except CommandError as error:
        problem = str(error)
    given = str([container.get("command"), container.get("args")])
    is_decided = "$" in given or "--config" in given
    names = tuple(sorted(around.asked)) if is_decided else ()
    return TargetEngine(
        image=image,
        arguments=words,
        problem=problem,
        config_maps=names,
        resources=_limited(container),
    )


def has_gpus(resources: Iterable[str]) -> bool:
    """Tell whether GPUs, or parts of them, are among the resources of a container."""
    return any(map(GPUS.fullmatch, resources))


def _limited(container: Mapping[str, Any]) -> tuple[str, ...]:
    resources = container.get("resources")
    limits = resources.get("limits") if isinstance(resources, Mapping) else None
    return tuple(map(str, limits)) if isinstance(limits, Mapping) else ()


def workers_answer(leader: TargetEngine, worker: TargetEngine) -> bool:
    """Tell whether each pod of a group has an API server, with the ranks that it starts.

    Sources:
        [vllm-source] engine/arg_utils.py: hybrid and external load balancing of data-parallel
        ranks, the former of a first rank too; entrypoints/cli/serve.py run_headless.
    """
    asked = ANSWERING & engine_flags(leader.arguments).keys()
    return bool(asked) and "--headless" not in engine_flags(worker.arguments)


def target_version(target: ScaleTarget, engine: TargetEngine) -> str:
    """Return the version of vLLM: as the spec gives it, else by the tag of its image.

    Raises:
        RefusedError: neither the image nor its tag is known to be of vLLM.
    """
    found = target.engine_version or image_version(engine.image) or likely_version(engine.image)
    if found is None:
        raise RefusedError(
            "EngineVersionUnknown",
            f"scaleTarget {target.name}: nothing says that the tag of image {engine.image[:255]!r} "
            "is a version of vLLM: set scaleTarget.engineVersion to what its /version answers, "
            "such as 0.33",
        )
    return found


def target_request(
    request: SizingRequest, spec: Spec, engine: TargetEngine, *, has_started: bool
) -> SizingRequest:
    """Return what a spec asks of the engine that its target runs, with the flags that it has.

    Flags that are absent are what this version takes by itself for this GPU. ``has_started``: a
    replica was seen Ready with them.

    Raises:
        RefusedError: a flag that decides capacity cannot be read, or vLLM would refuse it.
        CatalogError: it runs on a part of a GPU, or on another maker's.
    """
    check_resources(engine.resources)
    found = engine_flags(engine.arguments)
    where = f"scaleTarget {spec.scale_target.name}" if spec.scale_target else "scaleTarget"
    if engine.problem:
        raise RefusedError("FlagsUnknown", f"{where}: {engine.problem}")
    try:
        request = _with_overrides(request, spec, found)
        context_tokens, of_context = _context(request, found, has_started=has_started)
        flags, of_flags = _flags(replace(request, context_tokens=context_tokens), found)
        request = _with_drafts(request, found, has_started=has_started)
        adapters = adapters_in(found)
    except (ValueError, CatalogError) as error:
        raise RefusedError("FlagsUnknown", f"{where}: {error}") from error
    role = (f"role {request.role}",) if request.role else ()
    longest, _ = positions_of(request.shape, request.engine.minor)
    if longest is not None and context_tokens > longest:
        shape = replace(request.shape, stretched_position_tokens=None)
        request = replace(request, shape=replace(shape, max_position_tokens=context_tokens))
    request = replace(
        request,
        context_tokens=context_tokens,
        switches=switches_in(engine.arguments),
        inputs=(
            *with_changed(request.inputs, *of_context),
            *of_flags,
            *_version_inputs(spec.scale_target, engine),
            *_adapter_inputs(request, adapters),
        ),
    )
    return replace(
        with_running_cache(request, spec.model.kv_cache, found),
        flags=flags,
        has_started=has_started,
        engine_digest=digest_of((engine.image, *without_capacity_flags(engine.arguments), *role)),
        adapters=adapters if are_counted(request.shape) else None,
    )


def _with_overrides(request: SizingRequest, spec: Spec, found: Mapping[str, str]) -> SizingRequest:
    """Return the request with what the engine overrides of its model's configuration.

    A file that the spec names was read before; that it has the same is assumed.
    """
    written = found.get(OVERRIDES)
    keys = [flag for flag in found if flag.startswith(f"{OVERRIDES}.")]
    if written is None and not keys:
        return request
    if written and not keys and spec.model.config is None:
        return replace(request, shape=built_in_model(spec.model.id, written))
    assumed = Assumption(
        about="flags",
        taken=f"{', '.join(keys) or OVERRIDES}: the configuration of {spec.model.id} is assumed to "
        "have these values",
        effect="memory and time",
        replaced_by="a config.json with them, in the ConfigMap of model.config",
    )
    return replace(request, inputs=(*request.inputs, *assumed_inputs([assumed])))


def _adapter_inputs(request: SizingRequest, adapters: Adapters | None) -> Iterator[Input]:
    """Yield the slots for adapters, and that they are not counted where nobody knows how."""
    if adapters is None:
        return
    value, origin = str(adapters), Origin.LOOKED_UP
    if not are_counted(request.shape):
        kind = request.shape.model_type
        value, origin = f"{value}: none of it is counted for models of {kind}", Origin.GUESSED
    yield Input(figure=Figure.ADAPTERS, value=value, origin=origin)


def _version_inputs(target: ScaleTarget | None, engine: TargetEngine) -> Iterator[Input]:
    """Yield that a version is assumed, where it is by the tag of somebody's own image."""
    is_said = target is None or target.engine_version or image_version(engine.image)
    if is_said or likely_version(engine.image) is None:
        return
    assumed = Assumption(
        about="vLLM",
        taken=f"the tag of {engine.image[:255]} counts as a version of vLLM, as its name says vllm",
        effect="memory and time",
        replaced_by="scaleTarget.engineVersion",
    )
    yield from assumed_inputs([assumed])


def _with_drafts(
    request: SizingRequest, found: Mapping[str, str], *, has_started: bool
) -> SizingRequest:
    """Return the request with what drafts; engines that run are scaled without what is unknown."""
    try:
        return with_drafts(request, found)
    except ValueError as error:
        if not has_started:
            raise
        value = f"not counted: {error}"
        given = Input(figure=Figure.SPECULATION, value=value, origin=Origin.GUESSED)
        return replace(request, inputs=(*request.inputs, given))


def _context(
    request: SizingRequest, found: Mapping[str, str], *, has_started: bool
) -> tuple[int, tuple[Input, ...]]:
    """Return the longest request that the engine takes, and where that is from.

    What runs has shown that vLLM took its length: a variable or an override allowed it.

    Sources:
        [vllm-source] config/model.py _get_and_verify_max_len: absent, it is the model's own; with
        LongRoPE that of the training, within which short prompts are answered as trained.
    """
    asked = request.context_tokens
    longest, usual = positions_of(request.shape, request.engine.minor)
    given = found.get("--max-model-len")
    if given is not None and given.strip().lower() not in AUTO:
        tokens, where = _positive(given), f"--max-model-len {given}"
        is_allowed = has_started or any(flag.startswith(LONGER) for flag in found)
        if longest is not None and tokens > longest and not is_allowed:
            raise ValueError(f"{where} exceeds the {longest} positions of {request.shape.name}")
    else:
        tokens = usual if given is None and usual is not None else min(asked, usual or asked)
        where = "of the model, as no --max-model-len is set"
    if tokens == asked:
        return tokens, ()
    refused = ", and vLLM refuses longer requests" if tokens < asked else ""
    value = f"{tokens} tokens, {where}; contextLength {asked}{refused}"
    return tokens, (Input(figure=Figure.CONTEXT, value=value, origin=Origin.LOOKED_UP),)


def _positive(given: str) -> int:
    try:
        tokens = engine_integer(given)
    except ValueError:
        tokens = 0
    if not 0 < tokens <= MOST_CONTEXT_TOKENS:
        raise ValueError(f"--max-model-len {given!r:.90} is no number that vLLM reads")
    return tokens


def _flags(request: SizingRequest, found: Mapping[str, str]) -> tuple[Flags, tuple[Input, ...]]:
    """Return the flags that run, and those of them that the engine took by itself.

    Sources:
        [vllm-source] engine/arg_utils.py _set_default_max_num_seqs_and_batched_tokens_args;
        config/parallel.py use_batched_dp_moe.
    """
    engine, known = request.engine, batch_defaults(request.gpu, request.engine.minor)
    times = 2 if found.get("--performance-mode") == "throughput" else 1
    defaults = {
        MAX_NUM_SEQS: str(times * known.max_num_seqs),
        MAX_NUM_BATCHED_TOKENS: str(times * known.max_num_batched_tokens),
    }
    flags = flags_in(
        {**defaults, **found}, default_utilization=engine.constants.gpu_memory_utilization
    )
    seqs, tokens = flags.max_num_seqs, flags.max_num_batched_tokens
    if MAX_NUM_BATCHED_TOKENS not in found:
        # Data-parallel ranks may exchange tokens in batches of few.
        is_expert = "--enable-expert-parallel" in found and flags.parallelism.data > 1
        if is_expert and found.get("--all2all-backend") in BATCHED_RANKS:
            tokens = times * BATCHED_RANKS_TOKENS
        if "--no-enable-chunked-prefill" in found:
            tokens = max(tokens, request.context_tokens)
        tokens = min(tokens, seqs * request.context_tokens)
    if MAX_NUM_SEQS not in found:
        seqs = min(seqs, tokens)
    own = {MAX_NUM_SEQS: seqs, MAX_NUM_BATCHED_TOKENS: tokens}
    absent = [f"{name} {number}" for name, number in own.items() if name not in found]
    value = (
        f"{' and '.join(absent)}: what vLLM {engine.minor} takes by itself on {request.gpu.name}"
    )
    inputs = (Input(figure=Figure.FLAGS, value=value, origin=Origin.LOOKED_UP),) if absent else ()
    return replace(flags, max_num_seqs=seqs, max_num_batched_tokens=tokens), inputs


CONFIG: Final = "--speculative-config"
SHORT_CONFIG: Final = "-sc"
SHORT_FORMS: Final = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
}
OF_TEXT: Final = frozenset({"ngram", "[ngram]", "ngram_gpu", "suffix"})
"""Methods that look drafts up, and load nothing."""
HEADS: Final = frozenset({"eagle", "eagle3"})
MOST_TOKENS: Final = 64
MOST_CHARS: Final = 80


def with_drafts(request: SizingRequest, found: Mapping[str, str]) -> SizingRequest:
    """Return the request with the drafts that the flags ask for; as it is where there are none.

    What heads and draft models take is bounded. Nobody says how many drafts are accepted, so none
    is counted: a step verifies all of them and gives one token.

    Raises:
        ValueError: it is not known what such drafts take, or vLLM does not read the flag.

    Sources:
        [vllm-source] config/speculative.py SpeculativeConfig: methods, and which is taken where
        none is named; engine/arg_utils.py: --spec-method, --spec-model, --spec-tokens.
    """
    config = _config(found)
    if not config:
        return request
    name, model = str(config.get("method") or ""), str(config.get("model") or "")
    known = ("eagle3", "eagle", "dflash", "medusa", "ngram")  # by the name of the checkpoint
    method = name or next((each for each in known if each in model.lower()), "draft_model")
    layers = request.shape.num_draft_layers
    tokens = _tokens(config, layers if method.endswith("mtp") else 0)
    written = f"{CONFIG}: {method[:MOST_CHARS]}, {tokens} draft tokens"
    shape, bound = request.shape, ""
    if method not in OF_TEXT:
        shape, bound = _with_head(shape, method, model)
    drafts = Speculation(
        method="ngram" if method in OF_TEXT else "mtp", num_draft_tokens=tokens, acceptance_rate=0.0
    )
    assumption = Assumption(
        about="flags",
        taken=f"{written}, of which none is counted as accepted{bound}",
        effect="memory and time" if bound else "time",
        replaced_by="the cache and the speed that the first Ready pods show",
    )
    given = Input(figure=Figure.SPECULATION, value=str(drafts), origin=Origin.LOOKED_UP)
    return replace(
        request,
        shape=shape,
        speculation=drafts,
        inputs=(*request.inputs, given, *assumed_inputs([assumption])),
    )


def _config(found: Mapping[str, str]) -> dict[str, Any]:
    """Return what the flags say together: JSON, its keys one by one, and their short forms."""
    config: dict[str, Any] = {}
    if CONFIG in found:
        try:
            config = json.loads(found[CONFIG])
        except (ValueError, RecursionError):
            config = []  # type: ignore[assignment]  # refused below
        if not isinstance(config, dict):
            raise ValueError(f"{CONFIG} {found[CONFIG]!r:.90} is no JSON object")
        config = {str(key).replace("-", "_"): value for key, value in config.items()}
    for flag, value in found.items():
        name, dot, key = flag.partition(".")
        if dot and name in {CONFIG, SHORT_CONFIG}:
            config[key.replace("-", "_")] = value
        elif flag in SHORT_FORMS:
            config[SHORT_FORMS[flag]] = value
    return config


def _tokens(config: Mapping[str, Any], default: int) -> int:
    try:
        tokens = int(config.get("num_speculative_tokens") or default)
    except (TypeError, ValueError, OverflowError):
        tokens = 0
    if not 1 <= tokens <= MOST_TOKENS:
        raise ValueError(
            f"{CONFIG}: num_speculative_tokens must be from 1 to {MOST_TOKENS} to be planned for"
        )
    return tokens


def _with_head(shape: ModelShape, method: str, model: str) -> tuple[ModelShape, str]:
    """Return the shape with what drafts, and how that is bounded; empty: its own draft layers."""
    if method.endswith("mtp") and shape.num_draft_layers:
        return shape, ""
    extra, layers = shape.vocab_size * shape.hidden_size, 1
    what = "its head counted as a layer of the model and a further output matrix in 16 bits"
    if method not in HEADS:
        try:
            draft = built_in_model(model)
        except CatalogError as error:
            raise ValueError(
                f"{CONFIG}: it is not known what drafts by {method[:MOST_CHARS]} with "
                f"{model[:MOST_CHARS] or 'no model'} take; known are mtp, eagle, eagle3, ngram, "
                "suffix, and draft models of the catalogue"
            ) from error
        extra, layers = num_parameters(draft), draft.num_layers
        further = count_of(layers, "further layer")
        what = f"{draft.name} counted as {further} of the model, and in 16 bits"
    if all(isinstance(each, StateAttention) for _, each in shape.attentions()):
        raise ValueError(f"{CONFIG}: no layer of {shape.name} looks at every token, as drafts do")
    bounded = replace(shape, num_draft_layers=layers, rotary_elements=shape.rotary_elements + extra)
    return bounded, f"; {what}"
