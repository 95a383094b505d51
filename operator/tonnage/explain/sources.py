"""Where the figures of a plan are taken from: boards, prices, models, versions, constants."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tonnage.catalog.gpu import CatalogError, Gpu, sources
from tonnage.catalog.models import built_in_model, model_origin
from tonnage.catalog.price import Source
from tonnage.sizing.provenance import Figure, Origin
from tonnage.sizing.request import SizingRequest

GIVEN: Final = "given"
CONSTANTS: Final = {
    "cache and flags": ("vllm-source",),
    "memory": ("kv-logs",),
}
SPEED: Final = ("serving-measurements", "kernel-tables")


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
    """One figure, or a kind of them, and the work that it is taken from."""

    figure: str
    title: str
    where: str = ""
    quote: str = ""
    """What stands there."""

    def to_dict(self) -> dict[str, str]:
        """Return what is known of it."""
        fields = (("where", self.where), ("quote", self.quote))
        known = {name: value for name, value in fields if value}
        return {"figure": self.figure, "title": self.title, **known}


def citations(request: SizingRequest) -> tuple[Citation, ...]:
    """Return the sources of all that was looked up for a request, in the order of the plan."""
    return (*_of_gpu(request.gpu), *_of_model(request), *_of_engine(request))


def _of_gpu(gpu: Gpu) -> Iterator[Citation]:
    figure = f"GPU {gpu.name}"
    yield from (_quotation(figure, source) for source in gpu.sources)
    if not gpu.sources:
        yield Citation(figure=figure, title=GIVEN)
    price, figure = gpu.price, f"price of {gpu.name}"
    cited = [source for rent in price.offered if (source := rent.source)]
    yield from (_quotation(figure, source) for source in cited or filter(None, [price.source]))
    if not (cited or price.source) and (price.offered or price.purchase_usd):
        yield Citation(figure=figure, title=GIVEN)


def _quotation(figure: str, source: Source) -> Citation:
    return _citation(figure, source.key, quote=source.quote)


def _citation(figure: str, key: str, *, quote: str = "") -> Citation:
    known = sources().get(key)  # classes of an administrator's own may cite what is not listed
    if known is None:
        return Citation(figure=figure, title=key, quote=quote)
    return Citation(figure=figure, title=known["title"], where=known["where"], quote=quote)


def _of_model(request: SizingRequest) -> Iterator[Citation]:
    shape = request.shape
    figure = f"model {shape.name}"
    try:
        is_built_in = built_in_model(shape.name).digest == shape.digest
    except CatalogError:
        is_built_in = False
    if not is_built_in:
        yield Citation(figure=figure, title="the config.json that was given")
        return
    origin = model_origin(shape.name)
    yield Citation(figure=figure, title=origin.source, quote=origin.certainty)


def _of_engine(request: SizingRequest) -> Iterator[Citation]:
    for figure, keys in CONSTANTS.items():
        yield from (_citation(f"vLLM {request.engine.minor} {figure}", key) for key in keys)
    origins = {each.origin for each in request.inputs if each.figure is Figure.SPEED}
    if Origin.MEASURED in origins:
        yield Citation(figure="speed", title="measured")
    else:
        yield from (_citation("speed", key) for key in SPEED)
