"""One ModelDeployment from a file: answered with a plan, or refused with the ways out."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tonnage.api.hardware import ROLES, Role, Topology
from tonnage.api.objects import ModelDeployment
from tonnage.api.spec import Spec
from tonnage.api.status import Reason
from tonnage.catalog.gpu import CatalogError, Gpu
from tonnage.cli.read.references import References
from tonnage.cli.results.alternatives import Alternative, Saving, as_stored, offers
from tonnage.estimate.errors import CalibrationFileError
from tonnage.explain.demand_outcome import sizing_figures
from tonnage.explain.report import assumptions_written, offload_reasons, sizing_reasons
from tonnage.manifests.pod import deprecation
from tonnage.manifests.protection import DISRUPTION_BUDGET, evictable, pdb_blocks_eviction
from tonnage.manifests.roles import Running, RunningRole, divided_spec, role_models, role_name
from tonnage.manifests.target import RefusedError, target_request, target_version
from tonnage.sizing.bill import Bill
from tonnage.sizing.edge import nearest_sane, why_no_plan
from tonnage.sizing.errors import (
    ContextTooLongError,
    DoesNotFitError,
    SizingError,
    WillNotStartError,
)
from tonnage.sizing.memory.prefix import with_whole_blocks
from tonnage.sizing.offload import RUNS_ON, Decided, decide_offload, without_refused
from tonnage.sizing.plan import OnSearch, Sizing, keep_searching, requests_per_s_asked
from tonnage.sizing.provenance import Figure, Input, Origin, as_guessed
from tonnage.sizing.request import Flags, SizingRequest, ask, look_up, with_prior
from tonnage.sizing.resized import size_changed_spec, size_slow
from tonnage.sizing.roles import Divided
from tonnage.sizing.search import size
from tonnage.units import count_of, significant

if TYPE_CHECKING:  # what only a calibration needs
    from tonnage.estimate.calibration_file import CalibrationFile
    from tonnage.estimate.posterior import Three
    from tonnage.explain.words import Answer

    Verdict = tuple[Answer, dict[str, Any]]
    """In words and as data."""

NONE: Final = References()
CANNOT_RUN: Final = "CannotRun"
"""Reason of a plan that holds on paper, and that the operator refuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanContext:
    """What the command line adds to every object."""

    gpus: Mapping[str, Gpu]
    calibration: "CalibrationFile | None" = None
    """What was measured of an engine; refused for another."""
    planned: "Three | None" = None
    """What an operator counts an object's replicas with."""
    believed: "Three | None" = None
    """What it chooses flags with; None: the same."""
    guessed: frozenset[Figure] = frozenset()
    """What of a spec nobody said."""
    on_search: OnSearch = keep_searching
    """Called before each run of the engine model."""
    peak_ratio: float = 1.0
    """The rate of each demand over its mean, beside what a spec says of its peak."""
    is_advice: bool = False
    """Not what the operator does of itself: replicas over several nodes are no last resort, and
    targets that are not worth their price are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningState:
    """What runs for an object."""

    flags: Flags
    asks_the_same: bool
    """Its spec differs in pods at most, so its flags stay whatever others would gain."""
    is_rolled: bool = False
    """Pods are replaced for these all the same."""
    has_host_cache: bool = False
    """It has a KV cache in host memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """An object that can be served, and the replicas within its bounds."""

    deployment: ModelDeployment
    sizing: Sizing
    replicas: int
    reasons: tuple[Reason, ...]
    savings: tuple[Saving, ...] = ()
    """Changes with which the demand would cost less, the most saved first."""
    cheaper_whole: Bill | None = None
    """Of another split, where whole instances cost less with it."""
    why_offload: str = ""
    """Why Auto chose another KV cache in host memory than the verdict says."""
    begin: Sizing | None = None
    """What the operator begins with, before it has measured engines; None: somebody's run already.

    In mode Recommend, what Auto would begin with.
    """
    verdicts: "Mapping[str, Verdict]" = field(default_factory=dict)
    """What else was asked for, as words and as data, by its name there."""
    beside: Mapping[str, Any] = field(default_factory=dict)
    """Figures that were asked for, by name: a demand by the hour, what runs in a cluster."""

    @property
    def first_replicas(self) -> int:
        """Return the replicas that the operator begins with, within the bounds of the spec."""
        if self.begin is None:
            return self.replicas
        return within_bounds(self.begin, self.deployment)[0]

    def to_dict(self) -> dict[str, Any]:
        """Return what status would hold."""
        return {
            "metadata": identity(self.deployment),
            **sizing_figures(self.sizing, self.replicas, self.reasons),
            **({"replicasAtFirst": self.first_replicas} if self.begin else {}),
            "savings": [each.to_dict() for each in self.savings],
            **{name: figures for name, (_, figures) in self.verdicts.items()},
            **self.beside,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """An object that cannot be served as its spec stands."""

    deployment: ModelDeployment
    code: str
    message: str
    offers: tuple[Alternative, ...] = ()
    is_input: bool = False
    """Nothing was sized: what was asked names something unknown, or contradicts itself."""
    assumed: tuple[str, ...] = ()
    """What is counted for parts that no rule knows: it may be why."""
    request: SizingRequest | None = None
    """What the ways out begin from. None: the message says what to change."""
    why: Exception | Sizing | None = None
    """The refusal, or the plan for the nearest targets that are worth their price."""

    def to_dict(self) -> dict[str, Any]:
        """Return the condition that status would hold, without its time."""
        condition = {
            "type": "PlanValid",
            "status": "False",
            "reason": self.code,
            "message": self.message,
        }
        return {
            "metadata": identity(self.deployment),
            "conditions": [condition],
            "offers": [each.to_dict() for each in self.offers],
            **({"assumed": list(self.assumed)} if self.assumed else {}),
        }


def identity(deployment: ModelDeployment) -> dict[str, str]:
    return {"name": deployment.name, "namespace": deployment.namespace}


def answer(
    deployment: ModelDeployment,
    terms: PlanContext,
    references: References = NONE,
    *,
    live: RunningState | None = None,
) -> Planned | Refused:
    """Size one object; by what runs for it, ``live``, flags are chosen as the operator does."""
    spec = deployment.spec

    @cache
    def asked(has_host_cache: bool) -> SizingRequest:
        return request_of(spec, terms, references, has_host_cache=has_host_cache)

    try:
        request = asked(False)
    except (CatalogError, RefusedError, SizingError, CalibrationFileError) as error:
        return _not_asked(deployment, error)
    try:
        if spec.topology:  # where roles can be, they ask in its place
            roles_of(spec, spec.topology, request, terms, {})
        sizing, why_offload = _decided(spec, asked, live, terms)
        request = asked(sizing.request.has_host_cache)
        sane = nearest_sane(sizing, on_search=terms.on_search) if terms.is_advice else None
    except (CatalogError, SizingError) as error:
        message = f"{error}{_shorter(spec, request, error, terms)}"
        return _refused(deployment, request, error, message)
    if sane is not None:
        return _refused(deployment, request, sane, why_no_plan(sizing, sane))
    if terms.calibration is not None:
        from tonnage.estimate.calibration_file import check_key, key_of  # noqa: PLC0415  (slow)

        try:
            check_key(terms.calibration, key_of(request, sizing.flags.parallelism))
        except CalibrationFileError as error:
            return _not_asked(deployment, error)
    replicas, reasons = within_bounds(sizing, deployment, why_offload)
    return Planned(
        deployment=deployment,
        sizing=sizing,
        replicas=replicas,
        reasons=reasons,
        why_offload=why_offload,
        begin=None if live or terms.planned else _begun(sizing, spec, terms),
    )


def _begun(sizing: Sizing, spec: Spec, terms: PlanContext) -> Sizing | None:
    if spec.scale_target or requests_per_s_asked(sizing) is None:
        return None
    from tonnage.cli.results.beginning import first_fleet  # noqa: PLC0415  (slow)

    return first_fleet(
        sizing,
        terms.calibration,
        has_headroom=spec.scaling.mode != "Approve",
        on_search=terms.on_search,
    )


def _refused(
    deployment: ModelDeployment, request: SizingRequest, why: Exception | Sizing, message: str
) -> Refused:
    says_what_to_change = isinstance(why, WillNotStartError | ContextTooLongError)
    return Refused(
        deployment=deployment,
        code="SLOInfeasible" if isinstance(why, Sizing) else code_of(why),
        message=message,
        assumed=assumptions_written(request),
        request=None if says_what_to_change else request,
        why=why,
    )


def with_offers(refused: Refused, terms: PlanContext) -> Refused:
    """Return the no with the ways out; each is a search of its own."""
    if refused.request is None:
        return refused
    found = offers(
        refused.request,
        terms.gpus.values(),
        why=refused.why,
        fewest=fewest_replicas(refused.deployment),
        on_search=terms.on_search,
    )
    return replace(refused, offers=found)


def _shorter(spec: Spec, request: SizingRequest, error: Exception, terms: PlanContext) -> str:
    """Name the flag or the options that ask for less context, where nobody gave it itself."""
    if isinstance(error, ContextTooLongError) and Figure.CONTEXT in terms.guessed:
        return ", and is one prompt with its output: ask for shorter ones (--prompt, --output)"
    is_longer = spec.scale_target is not None and request.context_tokens > spec.context_length
    if not is_longer or not isinstance(error, DoesNotFitError):
        return ""
    return f"; contextLength asks for less: set --max-model-len {spec.context_length} there"


def _decided(
    spec: Spec,
    asked: Callable[[bool], SizingRequest],
    live: RunningState | None,
    terms: PlanContext,
) -> Decided:
    """Return the plan, with or without a cache in host memory where the spec leaves that open."""
    if live is not None and live.asks_the_same:
        sizing = _size(asked(live.has_host_cache), live, terms)
        return Decided(without_refused(spec, sizing) if live.is_rolled else sizing, RUNS_ON)
    return decide_offload(spec, lambda has_host_cache: _size(asked(has_host_cache), live, terms))


def roles_of(
    spec: Spec, topology: Topology, request: SizingRequest, terms: PlanContext, running: Running
) -> Divided:
    """Return both roles of a spec; ``running``: those that there are.

    Raises:
        SizingError: they keep no SLO.
    """
    return divided_spec(spec, topology, request, partial(size, on_search=terms.on_search), running)


def fewest_replicas(model: ModelDeployment) -> int:
    """Return the replicas that run whatever the demand: minReplicas, and to drain a node."""
    evicted = evictable(model)
    return max(model.spec.scaling.min_replicas, evicted[0] if evicted else 1)


def _not_asked(deployment: ModelDeployment, error: Exception) -> Refused:
    return Refused(deployment=deployment, code=code_of(error), message=str(error), is_input=True)


def _size(request: SizingRequest, live: RunningState | None, terms: PlanContext) -> Sizing:
    sized = partial(size, has_several_nodes=terms.is_advice, on_search=terms.on_search)
    if live is None or request.flags is not None:
        found = sized(request)
        if request.flags is not None:
            found.check_start()
        return found

    @cache
    def size_with(flags: Flags | None, run: bool) -> Sizing:
        if run:
            return sized(replace(request, flags=flags))
        return _chosen(request, terms, sized) if flags is None else size_with(None, False)

    if live.asks_the_same:
        return size_with(live.flags, True)
    return size_changed_spec(size_with, live.flags, request)


def _chosen(
    request: SizingRequest, terms: PlanContext, sized: Callable[[SizingRequest], Sizing]
) -> Sizing:
    """Return the best flags at the learned speed, with the replicas of the request's speed."""
    if terms.believed is None:
        return sized(request)
    from tonnage.cli.results.measured import as_planned  # noqa: PLC0415  (slow)

    best = sized(as_planned(with_prior(request), terms.believed))
    return size_slow(best, request, sized)


def request_of(
    spec: Spec, terms: PlanContext, references: References = NONE, *, has_host_cache: bool = False
) -> SizingRequest:
    """Make the request of a spec on these terms; ``has_host_cache``: where it leaves that open.

    Raises:
        CatalogError: a model, class or version is unknown, or lacks a figure.
        RefusedError: the Deployment says too little about its engine.
        CalibrationFileError: what was measured is of another engine.
    """
    target, engine = spec.scale_target, references.target
    version = target_version(target, engine) if target and engine else None
    known = look_up(spec, terms.gpus, model_config=references.config, engine_version=version)
    request = ask(spec, known, has_host_cache=has_host_cache)
    if target and engine:
        request = target_request(request, spec, engine, has_started=False)
    request = with_whole_blocks(request)
    # What the configuration of the model leaves open is an input, too.
    origin = Origin.GUESSED if request.shape.num_uncounted_encoders else Origin.LOOKED_UP
    notes = (Input(figure=Figure.MODEL, value=note, origin=origin) for note in request.shape.notes)
    request = replace(request, schedules=spec.scaling.schedules, inputs=(*request.inputs, *notes))
    demand = replace(request.demand, peak_ratio=request.demand.peak_ratio * terms.peak_ratio)
    request = replace(request, demand=demand, inputs=as_guessed(request.inputs, terms.guessed))
    if Figure.MAX_REPLICAS in terms.guessed:
        request = replace(request, max_replicas=None)
    if references.checkpoint is not None:
        request = as_stored(request, references.checkpoint)
    if terms.planned is None and terms.calibration is None:
        return request
    from tonnage.cli.results.measured import as_measured, as_planned  # noqa: PLC0415  (slow)

    request = request if terms.planned is None else as_planned(request, terms.planned)
    return request if terms.calibration is None else as_measured(request, terms.calibration)


def code_of(error: Exception) -> str:
    """Name an error as the condition's reason does."""
    if isinstance(error, RefusedError):
        return error.reason
    if isinstance(error, CalibrationFileError):
        return "CalibrationMismatch"
    return type(error).__name__.removesuffix("Error")


def within_bounds(
    sizing: Sizing, model: ModelDeployment, why_offload: str = ""
) -> tuple[int, tuple[Reason, ...]]:
    """Return the replicas that the spec allows, and every reason for them."""
    reasons = (
        *sizing_reasons(sizing),
        *pdb_blocks_eviction(model),
        *deprecation(model),
        *offload_reasons(model.spec, sizing, why=why_offload),
    )
    scaling = model.spec.scaling
    needed, evicted = sizing.replicas, evictable(model)
    most = sizing.request.max_replicas
    if most is not None and needed > most:
        sustained = significant(sizing.sustained_requests_per_s(most))
        asked = significant(requests_per_s_asked(sizing) or 0.0)
        message = (
            f"{count_of(needed, 'replica')} are needed, maxReplicas allows {most}: they sustain "
            f"{sustained} of the {asked} requests/s asked for"
        )
        return most, (*reasons, Reason(code="MaxReplicas", message=message))
    if evicted and max(needed, scaling.min_replicas) < evicted[0]:
        message = f"with {needed} no node could be drained: {evicted[1]}"
        return evicted[0], (*reasons, Reason(code=DISRUPTION_BUDGET, message=message))
    if needed < scaling.min_replicas:
        message = f"{needed} would do, minReplicas asks for {scaling.min_replicas}"
        return scaling.min_replicas, (*reasons, Reason(code="MinReplicas", message=message))
    return needed, reasons


There = Mapping[tuple[str, str], ModelDeployment]
"""Objects whose engines run, by namespace and name."""
NOTHING: Final[There] = {}


class Parts(NamedTuple):
    """Both roles of an object, or the object itself."""

    models: tuple[ModelDeployment, ...]
    message: str | None = None
    """Of which object, and how TTFT is divided."""


def parts_of(
    model: ModelDeployment,
    terms: PlanContext,
    references: References = NONE,
    *,
    there: There = NOTHING,
) -> Parts:
    """Return the objects of both roles where an object has them, else itself, refused or not.

    ``there``: what runs, of which roles keep their splits.
    """
    topology, itself = model.spec.topology, Parts((model,))
    if topology is None:
        return itself
    running = dict(_running(model, there))
    try:
        request = request_of(model.spec, terms, references)
        found = roles_of(model.spec, topology, request, terms, running)
    except (CatalogError, SizingError):
        return itself
    return Parts(role_models(model, found), f"{'/'.join(model.key)}: two roles: {found}")


def _running(model: ModelDeployment, there: There) -> Iterator[tuple[Role, RunningRole]]:
    for role in ROLES:
        own = there.get((model.namespace, role_name(model.name, role)))
        sizes = own.spec.hardware.parallelism if own else None
        if own and sizes and own.spec.engine and own.spec.engine.role == role:
            yield role, (own.spec, sizes)
