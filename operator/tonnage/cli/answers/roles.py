"""The objects that are made of one with a topology."""

from functools import partial

from tonnage.api.objects import ModelDeployment
from tonnage.cli.answers.planning import NONE, Terms, request_of
from tonnage.cli.read.references import References
from tonnage.manifests.roles import role_models, weigh_topology
from tonnage.sizing.search import size


def parts_of(
    model: ModelDeployment, terms: Terms, references: References = NONE
) -> tuple[ModelDeployment, ...]:
    """Return those of both roles where an object is run so while nothing runs, else itself.

    Raises:
        CatalogError, SizingError: it asks for roles that cannot be.
    """
    if model.spec.topology is None:
        return (model,)
    request = request_of(model.spec, terms, references)
    sized = partial(size, between=terms.between)
    weighed = weigh_topology(model.spec, request, sized, {})
    is_apart = weighed and (weighed.is_cheaper or model.spec.topology.roles == "Apart")
    return (
        role_models(model, weighed.divided)
        if weighed and weighed.divided and is_apart
        else (model,)
    )
