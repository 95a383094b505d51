"""The objects that are made of one with a topology."""

from tonnage.api.objects import ModelDeployment
from tonnage.catalog.gpu import CatalogError
from tonnage.cli.answers.planning import NONE, Terms, request_of, weighed_roles
from tonnage.cli.read.references import References
from tonnage.manifests.roles import role_models
from tonnage.sizing.errors import SizingError


def parts_of(
    model: ModelDeployment, terms: Terms, references: References = NONE
) -> tuple[ModelDeployment, ...]:
    """Return those of both roles where an object begins with them; else itself, refused or not."""
    if model.spec.topology is None:
        return (model,)
    try:
        found = weighed_roles(model.spec, request_of(model.spec, terms, references), terms)
    except (CatalogError, SizingError):
        return (model,)
    is_apart = model.spec.topology.roles == "Apart" or (found and found.is_cheaper)
    if found is None or found.divided is None or not is_apart:
        return (model,)
    return role_models(model, found.divided)
