"""What a replica runs on: the GPU class, how a model is split over GPUs, and roles apart."""

import math
from typing import Annotated, Final, Literal, get_args

from pydantic import Field

from tonnage.api.base import ApiModel, Rule
from tonnage.units import bytes_per_second

MOST_GPUS = 64
"""Of one replica."""
_SIZES = ("tensor", "pipeline", "data")

LinkRate = Annotated[
    str, Field(pattern="^[1-9][0-9]{0,8}([.][0-9]{1,3})?[MGT][Bb]/s$", max_length=18)
]
"""What one GPU moves in one direction, in bytes or bits, as transfers achieve it."""


def _given(of: str) -> str:
    """Return the CEL product of the sizes that are given."""
    return " * ".join(f"(has({of}.{name}) ? {of}.{name} : 1)" for name in _SIZES)


class ParallelSizes(ApiModel):
    """Sizes of a split of the model over GPUs; those that are absent are chosen."""

    rules = (
        Rule(
            f"{_given('self')} <= {MOST_GPUS}",
            f"tensor x pipeline x data[ = {{}}] must not exceed {MOST_GPUS} GPUs",
            lambda it: it.num_given <= MOST_GPUS,
            figures=((_given("self"), lambda it: it.num_given),),
        ),
    )

    tensor: Annotated[int, Field(ge=1, le=MOST_GPUS)] | None = None
    """Tensor-parallel ranks, ``--tensor-parallel-size``. Each has a slice of every layer."""
    pipeline: Annotated[int, Field(ge=1, le=MOST_GPUS)] | None = None
    """Pipeline stages, ``--pipeline-parallel-size``. Each has some of the layers."""
    data: Annotated[int, Field(ge=1, le=MOST_GPUS)] | None = None
    """Data-parallel ranks, ``--data-parallel-size``. Each has its own requests and KV cache."""
    expert: bool | None = None
    """True gives each rank whole experts (``--enable-expert-parallel``, size tensor x data), false
    a slice of every expert. If absent, ranks have slices if the model allows that."""

    @property
    def num_given(self) -> int:
        """The product of the sizes that are given: GPUs of a replica are a multiple of it."""
        return math.prod(size or 1 for size in (self.tensor, self.pipeline, self.data))

    @property
    def are_all_given(self) -> bool:
        return None not in {self.tensor, self.pipeline, self.data}

    def may_be_of(self, num_gpus: int | None) -> bool:
        """Tell whether a split of so many GPUs may have these sizes; None: of any number."""
        if num_gpus is None:
            return True
        given = self.num_given
        return num_gpus == given if self.are_all_given else num_gpus % given == 0

    def __str__(self) -> str:
        given = ", ".join(f"{key}: {value}" for key, value in self.to_dict().items())
        return f"{{{given.replace('True', 'true').replace('False', 'false')}}}"


_PRODUCT = _given("self.parallelism")
_ALL_GIVEN = " && ".join(f"has(self.parallelism.{name})" for name in _SIZES)


class Hardware(ApiModel):
    """What it runs on."""

    rules = (
        Rule(
            "!has(self.gpusPerReplica) || !has(self.parallelism) || "
            f"({_ALL_GIVEN} ? self.gpusPerReplica == {_PRODUCT} : "
            f"self.gpusPerReplica % ({_PRODUCT}) == 0)",
            "gpusPerReplica[ {}] must be the product tensor x pipeline x data of parallelism, or a "
            "multiple of the given ones[: {}]",
            lambda it: it.parallelism is None or it.parallelism.may_be_of(it.gpus_per_replica),
            figures=(
                ("self.gpusPerReplica", lambda it: it.gpus_per_replica),
                (_PRODUCT, lambda it: it.parallelism.num_given),
            ),
        ),
    )

    gpu: Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$", max_length=63)]
    """The GPU class: a name that ``tonnage catalog gpus`` lists, or one of the settings."""
    gpus_per_replica: Annotated[int, Field(ge=1, le=MOST_GPUS)] | None = None
    """GPUs of one replica. If absent, Tonnage takes the number whose fleet costs least for the
    demand; of numbers that cost the same within the model's error, the simplest split."""
    parallelism: ParallelSizes | None = None
    """The sizes of the parallelism that you fix. Tonnage chooses the others."""
    node_link: LinkRate | None = None
    """The bandwidth from one GPU to another node, such as 50GB/s or 400Gb/s. If absent, Tonnage
    plans no data-parallel ranks over several nodes."""

    @property
    def node_link_bytes_per_s(self) -> float | None:
        """Of one GPU, one direction; None: it is not given."""
        return bytes_per_second(self.node_link) if self.node_link else None


Role = Literal["prefill", "decode"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)


class RoleOptions(ApiModel):
    """What one role has of its own; the rest is as the spec says for both."""

    rules = (
        Rule(
            "!has(self.parallelism) || !has(self.parallelism.pipeline) || "
            "self.parallelism.pipeline == 1",
            "parallelism.pipeline must be 1: KV caches of pipeline stages cannot be transferred",
            lambda it: it.parallelism is None or (it.parallelism.pipeline or 1) == 1,
            "parallelism",
        ),
        Rule(
            "!has(self.minReplicas) || !has(self.maxReplicas) || "
            "self.minReplicas <= self.maxReplicas",
            "minReplicas must not exceed maxReplicas",
            lambda it: (it.min_replicas or 0) <= (it.max_replicas or math.inf),
        ),
    )

    parallelism: ParallelSizes | None = None
    """The parallelism of the role. If absent, it is hardware.parallelism, or else chosen."""
    min_replicas: Annotated[int, Field(ge=1, le=1000)] | None = None
    """The minimum number of replicas of the role. If absent, it is scaling.minReplicas."""
    max_replicas: Annotated[int, Field(ge=1, le=1000)] | None = None
    """The maximum number of replicas of the role. If absent, it is scaling.maxReplicas."""


class Topology(ApiModel):
    """Disaggregated serving: Tonnage creates and updates a ModelDeployment for each role."""

    kv_link: LinkRate | None = None
    """The bandwidth from one GPU to a replica of the other role, such as 50GB/s or 400Gb/s. If
    absent, it is hardware.nodeLink, or else the link between the GPUs of a node."""
    prefill: RoleOptions | None = None
    """Options of the prefill replicas, which compute the KV cache of prompts."""
    decode: RoleOptions | None = None
    """Options of the decode replicas, which generate the output tokens."""

    @property
    def kv_link_bytes_per_s(self) -> float | None:
        """Of one GPU, one direction; None: it is not given."""
        return bytes_per_second(self.kv_link) if self.kv_link else None

    def options_of(self, role: Role) -> RoleOptions:
        return (self.prefill if role == "prefill" else self.decode) or RoleOptions()
