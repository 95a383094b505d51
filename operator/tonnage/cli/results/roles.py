"""The objects that are made of one with a topology."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from tonnage.api.objects import ModelDeployment
from tonnage.api.pods import ROLES, Role
from tonnage.catalog.gpu import CatalogError
from tonnage.cli.read.references import References
from tonnage.cli.results.planning import NONE, PlanContext, request_of, roles_of
from tonnage.manifests.roles import RunningRole, role_models, role_name
from tonnage.sizing.errors import SizingError

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
            yield role, RunningRole(spec=own.spec, sizes=sizes)
