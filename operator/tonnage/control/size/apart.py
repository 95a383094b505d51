"""Both roles of an object with a topology: whether it has them, and how each is split."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from tonnage.api.hardware import ParallelSizes
from tonnage.api.objects import ModelDeployment
from tonnage.api.pods import Role
from tonnage.api.topology import Topology
from tonnage.control.input.answers import Asker
from tonnage.control.input.memory import ObjectMemory
from tonnage.control.input.state import Apart, BadConfig, Fleet, ModelState, RoleObject
from tonnage.control.learn.believed import asked_with, belief
from tonnage.control.size.allowed import check_allowed
from tonnage.control.size.question import RefusedError, by_spec
from tonnage.estimate.belief import Belief
from tonnage.explain.topology import roles_verdict
from tonnage.manifests.roles import ROLES, role_manifests, role_name
from tonnage.sizing.errors import SizingError, SLOInfeasibleError
from tonnage.sizing.plan import Sizing
from tonnage.sizing.refusals import role_refusals
from tonnage.sizing.request import ANY_SIZES, SizingRequest
from tonnage.sizing.roles import Comparison, Divided, divide
from tonnage.units import bytes_per_second, format_s

SIZES = ("tensor", "data", "expert")
"""Of a split whose cache is handed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """Both roles of an object beside one fleet for both."""

    divided: Divided | None
    """None: no roles keep the SLO."""
    is_cheaper: bool
    """Roles cost less than one fleet, or serve alone."""
    message: str
    """Why, with the numbers."""


Size = Callable[[SizingRequest], Sizing]


def weigh_topology(
    state: ModelState, fleet: Fleet, memory: ObjectMemory, asker: Asker
) -> Weighed | None:
    """Weigh the roles of an object against one fleet for both; None: it asks for no roles.

    Raises:
        RefusedError, CatalogError, SizingError: nothing can be planned; the message says why.
        SearchAbandonedError: the time for searches is spent before there is an answer.
    """
    model, shape = state.model, state.model_config
    if not isinstance(model, ModelDeployment) or model.spec.topology is None:
        return None
    if state.config_problem or isinstance(shape, BadConfig):
        return None  # refused as any object is
    request = by_spec(model.spec, fleet.gpus, shape, None)
    size = _as_unmeasured(belief(request, None, state, fleet, memory), asker)
    if model.spec.topology.roles == "Apart":
        return _compared(request, _divided(state, model, request, size), size)
    if reason := next(role_refusals(model.spec, request.engine.minor, request.shape), None):
        return Weighed(divided=None, is_cheaper=False, message=f"no roles: {reason}")
    try:
        return _compared(request, _divided(state, model, request, size), size)
    except SizingError as refusal:
        return Weighed(divided=None, is_cheaper=False, message=f"no roles: {refusal}")


def apart(state: ModelState, fleet: Fleet, weighed: Weighed) -> Apart | None:
    """Return both roles as they should be; None: one fleet serves the object.

    What Auto chose stays once it runs.

    Raises:
        RefusedError: something of another has the name of a role, or is not allowed.
    """
    model = state.model
    if not isinstance(model, ModelDeployment) or model.spec.topology is None:
        return None
    runs_whole = state.deployment is not None
    runs_apart = any(each.view.owner_uid == state.view.uid for each in state.roles.values())
    is_auto = model.spec.topology.roles == "Auto"
    if is_auto and (runs_whole or not (runs_apart or weighed.is_cheaper)):
        return None
    if weighed.divided is None:
        raise RefusedError("NoRoles", weighed.message)
    check_allowed(model, fleet.settings)
    for role, other in state.roles.items():
        if other.view.owner_uid != state.view.uid:
            raise RefusedError(
                "NameConflict",
                f"ModelDeployment {role_name(model.name, role)} exists and is not controlled by "
                f"{model.name}: delete or rename one of them",
            )
    return Apart(manifests=role_manifests(model, weighed.divided), message=weighed.message)


def _as_unmeasured(held: Belief, asker: Asker) -> Size:
    """Return what sizes a role as an object of its own is sized before it is measured."""

    def size(request: SizingRequest) -> Sizing:
        try:
            return asker.size(asked_with(request, held, held.asked.slow))
        except SLOInfeasibleError:
            return asker.size(asked_with(request, held, held.asked.middle))

    return size


def _divided(
    state: ModelState, model: ModelDeployment, request: SizingRequest, size: Size
) -> Divided:
    """Divide an object; the splits that run stay where they still serve it."""
    topology = model.spec.topology or Topology()
    given_link, node_link = topology.kv_link, request.gpu.interconnect_bytes_per_s
    link = bytes_per_second(given_link) if given_link else node_link
    given = {
        role: topology.options_of(role).parallelism or model.spec.hardware.parallelism or ANY_SIZES
        for role in ROLES
    }

    def of_role(role: Role, sizes: ParallelSizes) -> SizingRequest:
        options = topology.options_of(role)
        return replace(
            request,
            sizes=sizes,
            num_gpus=None if sizes.num_given > 1 else request.num_gpus,
            min_replicas=options.min_replicas or request.min_replicas,
            max_replicas=options.max_replicas or request.max_replicas,
        )

    def sized(sizes: Mapping[Role, ParallelSizes]) -> Divided:
        prefill, decode = (of_role(role, sizes[role]) for role in ROLES)
        return divide(prefill, decode, link, size)

    if held := dict(_held(model, state.roles, given)):
        with suppress(SizingError):
            return sized(given | held)
    return sized(given)


def _held(
    model: ModelDeployment,
    roles: Mapping[Role, RoleObject],
    given: Mapping[Role, ParallelSizes],
) -> Iterator[tuple[Role, ParallelSizes]]:
    """Yield the splits of the roles that there are, of the same model on the same GPUs."""
    for role, other in roles.items():
        if not isinstance(other.model, ModelDeployment):
            continue
        spec = other.model.spec
        sizes = spec.hardware.parallelism
        is_same = (spec.model, spec.hardware.gpu) == (model.spec.model, model.spec.hardware.gpu)
        if sizes is None or not is_same:
            continue
        if all(getattr(given[role], name) in {None, getattr(sizes, name)} for name in SIZES):
            yield role, sizes


def _compared(request: SizingRequest, divided: Divided, size: Size) -> Weighed:
    """Say what roles cost beside one fleet for both, and how TTFT is divided."""
    parts = (
        f"of TTFT decode has {format_s(divided.decode_s)}, of which the cache of a mean prompt "
        f"takes {format_s(divided.transfer_s)}; prefill has the rest"
    )
    try:
        unified = size(request)
    except SizingError as refusal:
        message = f"one fleet for both: {refusal}; {parts}"
        return Weighed(divided=divided, is_cheaper=True, message=message)
    found = Comparison[Divided](unified=unified, replicas=unified.replicas, pair=divided)
    message = f"apart costs less: {roles_verdict(found)}; {parts}"
    return Weighed(divided=divided, is_cheaper=found.is_apart, message=message)
