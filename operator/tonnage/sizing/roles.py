"""Prefill and decode apart, weighed against one fleet for both: which costs less at the same SLO.

Each role is sized as a model of its own: one reads prompts and makes one token, the other finds all
of a prompt but its last token in the cache. Where each just keeps its own part of TTFT both
together miss it, so from there on whole replicas are added until the engines of both in sequence
keep every target; of the pairs that do the cheapest is taken.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from tonnage.catalog.shape import LatentAttention, ModelShape, StateAttention
from tonnage.sizing.cost import cents, gpu_hour
from tonnage.sizing.errors import InvalidParallelismError, SizingError, SLOInfeasibleError
from tonnage.sizing.plan import Between, Sizing, keep_searching, requests_per_s_asked
from tonnage.sizing.request import SizingRequest, without_stages
from tonnage.sizing.search import Cost, cost_of, size
from tonnage.sizing.serving.flags import trial_of
from tonnage.sizing.serving.handover import Handover, Roles, hand_over
from tonnage.sizing.workload import Demand, Slo
from tonnage.units import MS_PER_S, count_of, format_s, format_si

MOST_REPLICAS: Final = 256
"""Of a role that are run."""
MOST_MORE: Final = 8
"""Replicas of a role beyond those that it takes by itself; a quarter where that is more."""


Rank = tuple[Cost, int]
"""Of a fleet, the lowest first: what it costs, and its GPUs."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Replicas of both roles, and what they do with the rate asked for."""

    prefill: Sizing
    decode: Sizing
    roles: Roles
    handover: Handover

    @property
    def replicas(self) -> tuple[int, int]:
        return self.roles.num_prefill, self.roles.num_decode

    @property
    def rank(self) -> Rank:
        return _rank(self.prefill, self.decode, self.replicas)

    @property
    def is_kept(self) -> bool:
        """Whether they keep every target together."""
        return self.handover.ratio <= 1


@dataclass(frozen=True, kw_only=True)
class Divided:
    """Roles that each keep their own part of TTFT, as objects of their own do."""

    prefill: Sizing
    decode: Sizing
    transfer_s: float
    """Of the cache of a mean prompt, in whole milliseconds."""
    decode_s: float
    """Of TTFT, that decode may take: the transfer is in it."""

    @property
    def replicas(self) -> tuple[int, int]:
        return self.prefill.replicas, self.decode.replicas

    @property
    def is_short(self) -> bool:
        """Whether a role may not have as many replicas as it takes."""
        each = (self.prefill, self.decode)
        return any(role.replicas > (role.request.max_replicas or math.inf) for role in each)

    @property
    def rank(self) -> Rank:
        return _rank(self.prefill, self.decode, self.replicas)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The cheapest fleet for both roles, and roles apart or why there are none."""

    unified: Sizing
    """Of the fleet for both."""
    replicas: int
    """Of it, as many as the demand takes."""
    pair: Pair | None = None
    refusal: str = ""
    is_weighed: bool = True
    """A pair was searched for."""

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
        """Whether the pair serves for less, or alone."""
        return self.pair is not None and (self.is_short or self.pair.rank[0] < self.rank[0])


def weigh_roles(
    unified: Sizing,
    replicas: int,
    link_bytes_per_s: float,
    *,
    between: Between = keep_searching,
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
        search = _Search(request=request, rate=rate, link=link_bytes_per_s, between=between)
        try:
            return replace(found, pair=search.cheapest())
        except SizingError as refusal:
            return replace(found, refusal=str(refusal))
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
    return replace(
        request,
        role="prefill",
        workload=request.workload.of_role("prefill"),
        slo=Slo(ttft=tuple(targets)),
        demand=Demand(requests_per_s=rate),
        sizes=without_stages(request.sizes),
    )


def decode_request(request: SizingRequest, rate: float) -> SizingRequest:
    """Return what is asked of the decode role."""
    return replace(
        request,
        role="decode",
        workload=request.workload.of_role("decode"),
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
    tokens = decode.workload.prompt.mean_tokens
    step_s = min(each.limit_s for each in decode.slo.tpot)

    def part_s(transfer_s: float) -> float:
        return _whole_ms(2 * transfer_s + 3 * step_s)

    second = size(decode_request(decode, rate))
    alone_s = second.replica.layout.bytes_of_sequence(tokens) / link_bytes_per_s
    first = size(prefill_request(prefill, rate, part_s(alone_s)))
    tensors = first.parallelism.tensor, second.parallelism.tensor
    if not go_together(decode.shape, *tensors):
        return _of_one_tensor(
            prefill, decode, tensors, lambda one, other: divide(one, other, link_bytes_per_s, size)
        )
    roles = Roles(
        prefill=first.replica,
        decode=second.replica,
        num_prefill=1,
        num_decode=1,
        link_bytes_per_s=link_bytes_per_s,
    )
    transfer_s = _whole_ms(roles.transfer_s(tokens))
    decode_s = part_s(transfer_s)
    read = prefill_request(_with_split(prefill, first), rate, decode_s)
    made = decode_request(_with_split(decode, second), rate)
    parts = (replace(each, limit_s=decode_s) for each in decode.slo.ttft)
    made = replace(made, slo=replace(made.slo, ttft=tuple(parts)), transfer_s=transfer_s)
    return Divided(prefill=size(read), decode=size(made), transfer_s=transfer_s, decode_s=decode_s)


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

    Raises:
        InvalidParallelismError: it gives both.
        SizingError: neither keeps the SLO.
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
    return min(found, key=lambda each: (each.is_short, each.rank))


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


def _rank(prefill: Sizing, decode: Sizing, replicas: tuple[int, int]) -> Rank:
    """Return the rank of both roles together, on nodes that they share."""
    sizes = prefill.parallelism.num_gpus, decode.parallelism.num_gpus
    num_gpus = sum(map(int.__mul__, replicas, sizes))
    hour = gpu_hour(prefill.request.gpu, max(sizes))
    if hour is None:
        return (True, float(num_gpus)), num_gpus
    return (False, cents(hour.usd * hour.gpus_paid(num_gpus, 1))), num_gpus


@dataclass(frozen=True, kw_only=True)
class _Search:
    """For the pair of roles that serves a rate for the least."""

    request: SizingRequest
    rate: float
    link: float
    """Bytes per second."""
    between: Between

    def cheapest(self) -> Pair:
        """Return it.

        Raises:
            SizingError: no pair keeps the targets, by what the last one tried lacks.
        """
        pairs: list[Pair] = []
        refusals: list[SizingError] = []
        for prefill, decode in self._splits():
            try:
                pairs.append(self._whole_replicas(prefill, decode))
            except SizingError as refusal:
                refusals.append(refusal)
        if not pairs:
            raise refusals[-1]
        return min(pairs, key=lambda pair: pair.rank)

    def _splits(self) -> Iterator[tuple[Sizing, Sizing]]:
        """Yield the cheapest split of each role; where they do not go together, one of each's."""
        request, between = self.request, self.between
        second = decode_request(request, self.rate)
        decode = size(second, between=between)
        moved_bytes = decode.replica.layout.bytes_of_sequence(request.workload.prompt.mean_tokens)
        later_s = moved_bytes / self.link + decode.idle.step_s
        first = prefill_request(request, self.rate, later_s)
        prefill = size(first, between=between)
        tensors = prefill.parallelism.tensor, decode.parallelism.tensor
        if go_together(request.shape, *tensors):
            yield prefill, decode
            return
        yield size(_with_tensor(first, tensors[1]), between=between), decode
        yield prefill, size(_with_tensor(second, tensors[0]), between=between)

    def _whole_replicas(self, prefill: Sizing, decode: Sizing) -> Pair:
        """Return the cheapest whole replicas of two splits that keep every target together.

        More of one role never serve worse: of each number of decode replicas the fewest of prefill
        are looked for among those that would cost less than the best so far.

        Raises:
            SLOInfeasibleError: none of those near to what each role takes by itself does.
        """
        trial = replace(trial_of(self.request, decode.replica), routing=self.request.routing)
        roles = Roles(
            prefill=prefill.replica,
            decode=decode.replica,
            num_prefill=0,
            num_decode=0,
            link_bytes_per_s=self.link,
        )
        tokens = self.request.workload.prompt.mean_tokens
        firsts = self._numbers("prefill", prefill, roles.sent_bytes(tokens))
        seconds = self._numbers("decode", decode, roles.taken_bytes(tokens))

        @cache
        def pair(num_prefill: int, num_decode: int) -> Pair:
            self.between()
            tried = replace(roles, num_prefill=num_prefill, num_decode=num_decode)
            handover = hand_over(trial, tried, self.rate)
            return Pair(prefill=prefill, decode=decode, roles=tried, handover=handover)

        best: Pair | None = None
        for second in seconds:
            cheaper = [
                (first, second)
                for first in firsts
                if best is None or _rank(prefill, decode, (first, second)) < best.rank
            ]
            if cheaper and pair(*cheaper[-1]).is_kept:
                best = pair(
                    *cheaper[bisect_left(cheaper, True, key=lambda each: pair(*each).is_kept)]
                )
        if best is None:
            raise SLOInfeasibleError(
                f"{count_of(firsts[0], 'prefill replica')} and "
                f"{count_of(seconds[0], 'decode replica')} keep the targets each by itself; moving "
                f"a prompt takes {format_s(roles.transfer_s(tokens))} over "
                f"{format_si(self.link, 'B/s')} per GPU, and up to {firsts[-1]} and "
                f"{seconds[-1]} do not keep them together"
            )
        return best

    def _numbers(self, role: str, sizing: Sizing, moved_bytes: float) -> range:
        """Return the replicas of a role that are tried, from as many as it takes by itself.

        Raises:
            SLOInfeasibleError: these are more than there may be.
        """
        # No link moves more than one cache at a time; each rank has one.
        links = math.ceil(self.rate * moved_bytes / self.link / sizing.parallelism.data)
        fewest = max(self.request.min_replicas, sizing.replicas, links)
        most = min(self.request.max_replicas or MOST_REPLICAS, MOST_REPLICAS)
        if fewest > most:
            by = "maxReplicas allows" if most == self.request.max_replicas else "a plan runs"
            needed = count_of(fewest, f"{role} replica")
            raise SLOInfeasibleError(f"{needed} would be needed, {by} {most} of a role")
        return range(fewest, min(most, fewest + max(MOST_MORE, fewest // 4)) + 1)


def _with_split(request: SizingRequest, found: Sizing) -> SizingRequest:
    """Return a request for the split that was found alone."""
    split = found.parallelism
    sizes = {"tensor": split.tensor, "pipeline": split.pipeline, "data": split.data}
    return replace(request, num_gpus=None, sizes=request.sizes.model_copy(update=sizes))


def _with_tensor(request: SizingRequest, tensor: int) -> SizingRequest:
    return replace(request, sizes=request.sizes.model_copy(update={"tensor": tensor}))
