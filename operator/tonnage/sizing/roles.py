"""Prefill and decode apart, weighed against one fleet for both: which costs less at the same SLO.

Each role is sized as a model of its own, with a fixed part of TTFT: one reads prompts and makes one
token, the other finds all of a prompt but its last token in the cache.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from tonnage.api.hardware import Role
from tonnage.catalog.shape import LatentAttention, ModelShape, StateAttention
from tonnage.sizing.cost import cents, gpu_hour
from tonnage.sizing.errors import InvalidParallelismError, SizingError, SLOInfeasibleError
from tonnage.sizing.plan import OnSearch, Sizing, keep_searching, requests_per_s_asked
from tonnage.sizing.request import SizingRequest, without_stages
from tonnage.sizing.search import Cost, cost_of, size
from tonnage.sizing.workload import Demand, Slo
from tonnage.units import MS_PER_S, count_of, format_s

Rank = tuple[Cost, int]
"""Of a fleet, the lowest first: what it costs, and its GPUs."""


@dataclass(frozen=True, kw_only=True)
class Divided:
    """Roles that each keep their own part of TTFT, as objects of their own do."""

    prefill: Sizing
    decode: Sizing
    link_bytes_per_s: float
    """Of one GPU, one direction."""
    transfer_s: float
    """Of the cache of a mean prompt, in whole milliseconds."""
    decode_s: float
    """Of TTFT, that decode may take: the transfer is in it."""

    @property
    def sent_bytes(self) -> float:
        """What one prefill GPU sends of a mean prompt to all that take from it."""
        return _sent_bytes(self.prefill, self.decode)

    @property
    def replicas(self) -> tuple[int, int]:
        """Of prefill and decode, as many as each takes by itself, and as its links need.

        No link moves more than one cache at a time, and each data-parallel rank has one.
        """
        return (
            _fewest(self.prefill, self.sent_bytes / self.link_bytes_per_s),
            _fewest(self.decode, _taken_bytes(self.decode) / self.link_bytes_per_s),
        )

    @property
    def shortage(self) -> str:
        """Say which role may not have as many replicas as it takes; empty: none."""
        for role, number in zip((self.prefill, self.decode), self.replicas, strict=True):
            most = role.request.max_replicas
            if most is not None and number > most:
                needed = count_of(number, f"{role.request.role} replica")
                return f"{needed} would be needed, maxReplicas allows {most} of a role"
        return ""

    @property
    def rank(self) -> Rank:
        """Of both roles together, on nodes that they share."""
        sizes = self.prefill.parallelism.num_gpus, self.decode.parallelism.num_gpus
        num_gpus = sum(map(int.__mul__, self.replicas, sizes))
        hour = gpu_hour(self.prefill.request.gpu, max(sizes))
        if hour is None:
            return (True, float(num_gpus)), num_gpus
        return (False, cents(hour.usd * hour.gpus_paid(num_gpus, 1))), num_gpus

    def __str__(self) -> str:
        return (
            f"of TTFT decode has {format_s(self.decode_s)}, of which the cache of a mean prompt "
            f"takes {format_s(self.transfer_s)}; prefill has the rest"
        )


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The cheapest fleet for both roles, and roles apart or why there are none."""

    unified: Sizing
    """Of the fleet for both."""
    replicas: int
    """Of it, as many as the demand takes."""
    divided: Divided | None = None
    refusal: str = ""
    is_weighed: bool = True
    """Roles apart were sized."""

    @property
    def rank(self) -> Rank:
        """Of the fleet for both."""
        has_no_price, amount = cost_of(self.unified, self.replicas)
        return (has_no_price, cents(amount)), self.replicas * self.unified.parallelism.num_gpus

    @property
    def is_short(self) -> bool:
        """Whether the fleet for both may not have as many replicas as it takes."""
        return self.replicas > (self.unified.request.max_replicas or math.inf)

    @property
    def is_apart(self) -> bool:
        """Whether the roles serve for less, or alone."""
        apart = self.divided
        return apart is not None and (self.is_short or apart.rank[0] < self.rank[0])


def weigh_roles(
    unified: Sizing, replicas: int, link_bytes_per_s: float, *, on_search: OnSearch = keep_searching
) -> Comparison:
    """Weigh roles apart against a fleet for both.

    ``link_bytes_per_s``: of one GPU, one direction, as transfers achieve it.
    """
    found = Comparison(unified=unified, replicas=replicas)
    request, rate = unified.request, requests_per_s_asked(unified)
    if request.role is not None:
        why = "engine.role: it is one of both roles already"
    elif request.flags is not None:
        why = "spec.scaleTarget: its engines keep their flags, so no roles"
    elif not (request.slo.ttft and request.slo.tpot):
        why = "slo: roles are weighed by both timeToFirstToken and timePerOutputToken"
    elif not rate:
        why = "demand: roles are weighed by whole replicas for a rate"
    else:
        asked = replace(request, demand=Demand(requests_per_s=rate))
        try:
            apart = divide(asked, asked, link_bytes_per_s, partial(size, on_search=on_search))
        except SizingError as refusal:
            return replace(found, refusal=str(refusal))
        short = apart.shortage
        return replace(found, refusal=short) if short else replace(found, divided=apart)
    return replace(found, refusal=why, is_weighed=False)


def prefill_request(request: SizingRequest, rate: float, later_s: float) -> SizingRequest:
    """Return what is asked of the prefill role; ``later_s``: of TTFT, passes after it at least.

    Raises:
        SLOInfeasibleError: all of TTFT does.
    """
    for target in request.slo.ttft:
        if target.limit_s <= later_s:
            raise SLOInfeasibleError(
                f"TTFT {target}: moving the cache of a prompt and the first step of decode take "
                f"{format_s(later_s)}"
            )
    targets = (replace(each, limit_s=each.limit_s - later_s) for each in request.slo.ttft)
    return replace(of_role(request, "prefill", rate), slo=Slo(ttft=tuple(targets)))


def of_role(request: SizingRequest, role: Role, rate: float) -> SizingRequest:
    """Return what is asked of one role."""
    return replace(
        request,
        role=role,
        workload=request.workload.of_role(role),
        demand=Demand(requests_per_s=rate),
        sizes=without_stages(request.sizes),
    )


def divide(
    prefill: SizingRequest,
    decode: SizingRequest,
    link_bytes_per_s: float,
    size: Callable[[SizingRequest], Sizing],
) -> Divided:
    """Size both roles of a request, with a fixed part of TTFT for each.

    Percentiles of two queues do not add up: parts that are kept one by one are together late for up
    to twice as many, and mostly for fewer, since an early one makes up for a late one. Decode gets
    twice the transfer, since caches queue for a link, and three steps at the limit of TPOT: the one
    in progress, the one that ends the prompt, and one for a queue.
    ``prefill``, ``decode``: whole requests, with the split and the bounds of a role; of a rate.

    Raises:
        SLOInfeasibleError: a limit of TTFT leaves nothing for prefill.
        SizingError: as ``size`` does.
    """
    rate = decode.demand.requests_per_s or 0.0
    step_s = min(each.limit_s for each in decode.slo.tpot)

    def part_s(transfer_s: float) -> float:
        return _whole_ms(2 * transfer_s + 3 * step_s)

    second = size(of_role(decode, "decode", rate))
    first = size(prefill_request(prefill, rate, part_s(_taken_bytes(second) / link_bytes_per_s)))
    tensors = first.parallelism.tensor, second.parallelism.tensor
    if not go_together(decode.shape, *tensors):
        return _of_one_tensor(
            prefill, decode, tensors, lambda one, other: divide(one, other, link_bytes_per_s, size)
        )
    transfer_s = _whole_ms(_sent_bytes(first, second) / link_bytes_per_s)
    decode_s = part_s(transfer_s)
    read = prefill_request(_with_split(prefill, first), rate, decode_s)
    made = of_role(_with_split(decode, second), "decode", rate)
    parts = (replace(each, limit_s=decode_s) for each in decode.slo.ttft)
    made = replace(made, slo=replace(made.slo, ttft=tuple(parts)), transfer_s=transfer_s)
    return Divided(
        prefill=size(read),
        decode=size(made),
        link_bytes_per_s=link_bytes_per_s,
        transfer_s=transfer_s,
        decode_s=decode_s,
    )


def _fewest(role: Sizing, transfer_s: float) -> int:
    """Return the replicas that a role takes, links that are busy so long with a prompt counted."""
    rate = role.request.demand.requests_per_s or 0.0
    links = math.ceil(rate * transfer_s / role.parallelism.data)
    return max(role.request.min_replicas, role.replicas, links)


def _taken_bytes(decode: Sizing) -> float:
    """Return the cache of a mean prompt that one decode GPU takes."""
    tokens = decode.request.workload.prompt.mean_tokens
    return decode.replica.layout.bytes_of_sequence(tokens)


def _sent_bytes(prefill: Sizing, decode: Sizing) -> float:
    """Return what one prefill GPU sends of it to all that take from it.

    Sources:
        [vllm-source] kv_connector/v1/nixl: the engine that decodes pulls; each rank that decodes
        pulls what its own cache holds of a prompt, a whole copy where the cache is latent.
    """
    tensors = [each.parallelism.tensor for each in (decode, prefill)]
    return _taken_bytes(decode) * max(1.0, tensors[0] / tensors[1])


def _whole_ms(duration_s: float) -> float:
    return math.ceil(round(duration_s * MS_PER_S, 6)) / MS_PER_S


def _of_one_tensor(
    prefill: SizingRequest,
    decode: SizingRequest,
    tensors: tuple[int, int],
    divide_both: Callable[[SizingRequest, SizingRequest], Divided],
) -> Divided:
    """Divide with as many tensor-parallel ranks of both: those of the one or of the other.

    What costs less is taken. A number that the spec gives stays.
    """
    tried: list[tuple[SizingRequest, SizingRequest]] = []
    if decode.sizes.tensor is None:
        tried.append((prefill, _with_tensor(decode, tensors[0])))
    if prefill.sizes.tensor is None:
        tried.append((_with_tensor(prefill, tensors[1]), decode))
    found = list[Divided]()
    refusal: SizingError = InvalidParallelismError(
        f"topology: prefill with tensor {tensors[0]} hands no cache over to decode with tensor "
        f"{tensors[1]}"
    )
    for both in tried:
        try:
            found.append(divide_both(*both))
        except SizingError as refused:
            refusal = refused
    if not found:
        raise refusal
    return min(found, key=lambda each: (bool(each.shortage), each.rank))


def go_together(shape: ModelShape, prefill_tensor: int, decode_tensor: int) -> bool:
    """Tell whether engines of so many tensor-parallel ranks hand a cache over.

    Sources:
        [llm-d-guides] more of them for prefill than for decode are not supported but for a latent
        cache, of which each rank has all.
        [vllm-nixl] layers with a state need as many.
    """
    kinds = {type(kind) for _, kind in shape.attentions()}
    if StateAttention in kinds:
        return prefill_tensor == decode_tensor
    return prefill_tensor <= decode_tensor or kinds == {LatentAttention}


def _with_split(request: SizingRequest, found: Sizing) -> SizingRequest:
    """Return a request for the split that was found alone."""
    split = found.parallelism
    sizes = {"tensor": split.tensor, "pipeline": split.pipeline, "data": split.data}
    return replace(request, num_gpus=None, sizes=request.sizes.model_copy(update=sizes))


def _with_tensor(request: SizingRequest, tensor: int) -> SizingRequest:
    return replace(request, sizes=request.sizes.model_copy(update={"tensor": tensor}))
