"""Looking up what a spec names: model, GPU class, engine version, weight format."""

from collections.abc import Mapping

from tonnage.api.spec import Spec
from tonnage.catalog.config.quantization import WEIGHT_FORMATS
from tonnage.catalog.engine import find_engine
from tonnage.catalog.gpu import Gpu, find_gpu
from tonnage.catalog.models import built_in_model, read_model_config
from tonnage.sizing.question import Known


def look_up(
    spec: Spec,
    gpus: Mapping[str, Gpu],
    *,
    model_config: str | None = None,
    engine_version: str | None = None,
) -> Known:
    """Return the catalogue's figures for a spec.

    ``model_config``: the text of a config.json that replaces the built-in one.
    ``engine_version``: of a scale target, whose spec has no engine.

    Raises:
        CatalogError: a model, class or version is unknown, or a config.json is not understood.
    """
    if model_config is None:
        shape = built_in_model(spec.model.id)
    else:
        shape = read_model_config(model_config, name=spec.model.id)
    version = spec.engine.known_version if spec.engine else engine_version
    weights = spec.model.weights
    return Known(
        shape=shape,
        gpu=find_gpu(spec.hardware.gpu, gpus),
        engine=find_engine(version or ""),
        weights=shape.weight_format if weights == "auto" else WEIGHT_FORMATS[weights],
    )
