"""The engine that a calibration is of, as options name it."""

from collections.abc import Mapping
from dataclasses import dataclass

from tonnage.catalog.gpu import CatalogError, Gpu, UnknownModelError
from tonnage.cli.console import Failure, failing
from tonnage.cli.read.asked import Change, manifest_of_changes
from tonnage.cli.read.manifest import parse
from tonnage.sizing.errors import SizingError
from tonnage.sizing.parallelism.draft import rank_of
from tonnage.sizing.parallelism.rules import check_parallelism
from tonnage.sizing.request import SizingRequest, ask, look_up
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.model import StepTimeModel
from tonnage.sizing.step_time.speeds import speeds
from tonnage.units import count_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The engine that was measured: what it serves, and how it is split."""

    request: SizingRequest
    """With the prior's constants."""
    parallelism: Parallelism

    @property
    def model(self) -> StepTimeModel:
        """Return what tells its step times by the prior.

        Raises:
            SizingError: the engine refuses such a split.
        """
        request = self.request
        return StepTimeModel(
            shard=rank_of(request, self.parallelism),
            speeds=speeds(request.gpu, request.products, request.node_link_bytes_per_s),
            constants=request.speed,
        )


def subject_of(
    changes: tuple[Change, ...],
    parallelism: Parallelism,
    gpus: Mapping[str, Gpu],
    *,
    config: str | None = None,
) -> Subject:
    """Return what was measured; ``changes``: fields of a spec, ``config``: the config.json.

    Raises:
        Failure: a name is unknown, or the engine refuses the split.
    """
    spec = parse(manifest_of_changes(changes)).spec
    with failing(CatalogError, SizingError):
        try:
            request = ask(spec, look_up(spec, gpus, model_config=config))
        except UnknownModelError as error:
            raise Failure(f"{error}: give it with --model-config") from error
        check_parallelism(request.shape, request.weights, parallelism)
    if request.crosses_nodes(parallelism):  # constants would make up for the link between them
        node = count_of(request.gpu.gpus_per_node, "GPU")
        raise Failure(f"--data-parallel {parallelism.data} is over several nodes, each of {node}")
    return Subject(request=request, parallelism=parallelism)
