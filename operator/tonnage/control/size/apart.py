"""Whether an object has two roles in its place, and the objects that these are."""

from collections.abc import Iterator

from tonnage.api.objects import ModelDeployment
from tonnage.api.pods import Role
from tonnage.control.input.answers import Asker
from tonnage.control.input.memory import ObjectMemory
from tonnage.control.input.state import Apart, BadConfig, Fleet, ModelState
from tonnage.control.learn.believed import asked_with, belief
from tonnage.control.size.allowed import check_allowed
from tonnage.control.size.question import RefusedError, by_spec
from tonnage.manifests.roles import (
    RunningRole,
    Weighed,
    role_manifests,
    role_name,
    sizes_written,
    weigh_topology,
)
from tonnage.sizing.errors import SLOInfeasibleError
from tonnage.sizing.plan import Sizing
from tonnage.sizing.request import SizingRequest


def weighed(state: ModelState, fleet: Fleet, memory: ObjectMemory, asker: Asker) -> Weighed | None:
    """Weigh the roles of an object as objects of their own are sized before they are measured.

    Raises:
        CatalogError, SizingError: nothing can be planned; the message says why.
        SearchAbandonedError: the time for searches is spent before there is an answer.
    """
    model, shape = state.model, state.model_config
    if not isinstance(model, ModelDeployment) or model.spec.topology is None:
        return None
    if state.config_problem or isinstance(shape, BadConfig):
        return None  # refused as any object is
    request = by_spec(model.spec, fleet.gpus, shape, None, False, 0)
    held = belief(request, None, state, fleet, memory)

    def size(asked: SizingRequest) -> Sizing:
        try:
            return asker.size(asked_with(asked, held, held.asked.slow))
        except SLOInfeasibleError:
            return asker.size(asked_with(asked, held, held.asked.middle))

    return weigh_topology(model.spec, request, size, dict(_running(state)))


def _running(state: ModelState) -> Iterator[tuple[Role, RunningRole]]:
    for role, other in state.own_roles.items():
        sizes = sizes_written(other.view.digest)
        if isinstance(other.model, ModelDeployment) and sizes:
            yield role, RunningRole(spec=other.model.spec, sizes=sizes)


def apart(state: ModelState, fleet: Fleet, found: Weighed) -> Apart | None:
    """Return both roles as they should be; None: one fleet serves the object.

    Raises:
        RefusedError: something of another has the name of a role, or is not allowed.
    """
    model = state.model
    if not isinstance(model, ModelDeployment) or model.spec.topology is None:
        return None
    is_there = state.deployment or state.in_the_way or state.oversized_bytes is not None
    if not found.takes_roles(
        model.spec.topology, has_roles=bool(state.own_roles), is_one_fleet=bool(is_there)
    ):
        return None
    if state.deployment is not None:
        raise RefusedError(
            "NameConflict",
            f"{state.deployment.kind} {model.name} of this ModelDeployment serves both roles, and "
            "would run beside them: delete it",
        )
    if found.divided is None:
        raise RefusedError("NoRoles", found.message)
    check_allowed(model, fleet.settings)
    for role in state.roles.keys() - state.own_roles.keys():
        raise RefusedError(
            "NameConflict",
            f"ModelDeployment {role_name(model.name, role)} exists and is not controlled by "
            f"{model.name}: delete or rename one of them",
        )
    return Apart(manifests=role_manifests(model, found.divided), message=found.message)
