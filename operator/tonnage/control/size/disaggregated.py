"""Whether an object has two roles in its place, and the objects that these are."""

from collections.abc import Iterator

from tonnage.api.objects import ModelDeployment
from tonnage.api.pods import Role
from tonnage.control.input.memory import ObjectMemory
from tonnage.control.input.sizing_cache import SizingCache
from tonnage.control.input.state import BadConfig, DisaggregatedPlan, Fleet, ModelState
from tonnage.control.learn.believed import asked_with, belief
from tonnage.control.size.allowed import check_allowed
from tonnage.control.size.question import by_spec
from tonnage.manifests.roles import (
    RunningRole,
    divided_spec,
    role_manifests,
    role_name,
    sizes_written,
)
from tonnage.manifests.target import RefusedError
from tonnage.sizing.errors import SLOInfeasibleError
from tonnage.sizing.plan import Sizing
from tonnage.sizing.request import SizingRequest


def apart(
    state: ModelState, fleet: Fleet, memory: ObjectMemory, asker: SizingCache
) -> DisaggregatedPlan | None:
    """Return both roles as they should be; None: one fleet serves the object.

    Roles are sized as objects of their own are before they are measured.

    Raises:
        CatalogError, SizingError: nothing can be planned; the message says why.
        RefusedError: something of another has the name of a role, or is not allowed.
        SearchAbandonedError: the time for searches is spent before there is an answer.
    """
    model, shape = state.model, state.model_config
    if not isinstance(model, ModelDeployment) or model.spec.topology is None:
        return None
    if state.config_problem or isinstance(shape, BadConfig):
        return None  # refused as any object is
    request = by_spec(model.spec, fleet.gpus, shape, None, False)
    constants = belief(request, None, state, fleet, memory)

    def size(asked: SizingRequest) -> Sizing:
        try:
            return asker.size(asked_with(asked, constants, constants.asked.slow))
        except SLOInfeasibleError:
            return asker.size(asked_with(asked, constants, constants.asked.middle))

    divided = divided_spec(model.spec, model.spec.topology, request, size, dict(_running(state)))
    check_allowed(model, fleet.settings)
    _check_names(state, model)
    return DisaggregatedPlan(
        manifests=role_manifests(model, divided), message=f"two roles: {divided}"
    )


def _running(state: ModelState) -> Iterator[tuple[Role, RunningRole]]:
    for role, other in state.own_roles.items():
        sizes = sizes_written(other.view.digest)
        if isinstance(other.model, ModelDeployment) and sizes:
            yield role, RunningRole(spec=other.model.spec, sizes=sizes)


def _check_names(state: ModelState, model: ModelDeployment) -> None:
    """Refuse roles where something else has the name of one, or of the object itself.

    Raises:
        RefusedError: the message names it.
    """
    if state.deployment is not None:
        raise RefusedError(
            "NameConflict",
            f"{state.deployment.kind} {model.name} of this ModelDeployment serves both roles, and "
            "would run beside the two roles: delete it",
        )
    for role in state.roles.keys() - state.own_roles.keys():
        raise RefusedError(
            "NameConflict",
            f"ModelDeployment {role_name(model.name, role)} exists and is not controlled by "
            f"{model.name}: delete or rename one of them",
        )
