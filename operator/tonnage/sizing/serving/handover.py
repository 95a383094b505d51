"""Prefill and decode apart: what the engines of one role have read, those of the other go on with.

A request is read by a prefill engine, its cache is moved, and a decode engine computes the last
token of the prompt again and makes the answer, the first token too. The targets are judged by what
the client sees of both: percentiles of two queues do not add up.

Sources:
    [vllm-source] kv_connector/v1/nixl: the engine that decodes pulls, and that which prefilled
    keeps the blocks until then; each rank that decodes pulls what its own cache holds of a prompt,
    a whole copy where the cache is latent; v1/core/sched/scheduler.py: the last token is computed
    again.
"""

from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tonnage.engine.table import RequestTable
from tonnage.sizing.serving.goodput import FULL, requests_needed, requests_to_fill
from tonnage.sizing.serving.replica import Replica
from tonnage.sizing.serving.trial import LAST, TableRun, Trial, TrialResult, requests_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Replicas of both roles, and the link between them."""

    prefill: Replica
    decode: Replica
    num_prefill: int
    num_decode: int
    link_bytes_per_s: float
    """Of one GPU, one direction."""

    def taken_bytes(self, prompt_tokens: float) -> float:
        """Return the cache of a prompt that one decode GPU takes."""
        return self.decode.layout.bytes_of_sequence(prompt_tokens)

    def sent_bytes(self, prompt_tokens: float) -> float:
        """Return what one prefill GPU sends to all that take from it."""
        tensors = [each.model.shard.parallelism.tensor for each in (self.decode, self.prefill)]
        return self.taken_bytes(prompt_tokens) * max(1.0, tensors[0] / tensors[1])

    def transfer_s(self, prompt_tokens: float) -> float:
        """Return how long the cache of a prompt takes over a link that nothing else uses."""
        return self.sent_bytes(prompt_tokens) / self.link_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """What became of a rate."""

    result: TrialResult
    """TTFT from the arrival at the prefill role to the first token of the decode role."""
    held_s: float
    """From the end of prefill until a decode engine has the blocks, in the mean."""
    prefill_kv_usage: float
    """Share of the KV blocks of a prefill replica held, those that wait to be pulled counted."""

    @property
    def ratio(self) -> float:
        """Above 1 the rate is not kept."""
        return max(self.result.ratio, self.prefill_kv_usage / FULL)


def hand_over(trial: Trial, roles: Roles, requests_per_s: float) -> Handover:
    """Serve a rate with both roles.

    Each rank has a link, over which caches go one at a time. That of decode is the one of the rank
    that would serve if no link of decode were ever busy.
    ``trial``: of the traffic and the targets; its replica does not count.
    """
    decode = replace(trial, replica=roles.decode, num_replicas=roles.num_decode)
    prefill = replace(trial, replica=roles.prefill, num_replicas=roles.num_prefill)
    count = requests_needed(trial.slo) + requests_to_fill(decode)
    drawn = requests_of(trial, count)
    asked = drawn.table(requests_per_s)
    read = TableRun(
        prefill,
        RequestTable(
            asked.prompt_tokens, array("q", [1]) * count, asked.cached_tokens, asked.arrival_s
        ),
        drawn.routes,
    )
    ended_s, tokens = read.table.ended_s, trial.workload.prompt.mean_tokens
    prompt_s = [each / tokens / roles.link_bytes_per_s for each in asked.prompt_tokens]
    sent_s = _passed_s(ended_s, prompt_s, roles.sent_bytes(tokens), read.ranks)
    # Another draw than the one that chose the prefill engine.
    routes = drawn.routes[::-1]
    takers = _DecodeRun(decode, asked, routes, sent_s).takers
    taken_s = _passed_s(ended_s, prompt_s, roles.taken_bytes(tokens), takers)
    run = _DecodeRun(decode, asked, routes, list(map(max, sent_s, taken_s)))
    held_s = run.mean_wait_s(ended_s)
    waiting_bytes = requests_per_s * held_s * roles.prefill.layout.bytes_of_sequence(tokens)
    pool_bytes = roles.num_prefill * roles.prefill.kv_pool_bytes * roles.prefill.model.dp_size
    return Handover(
        result=run.outcome(),
        held_s=held_s,
        prefill_kv_usage=read.outcome().kv_usage + waiting_bytes / pool_bytes,
    )


def _passed_s(
    ready_s: Sequence[float], unit_s: Sequence[float], size: float, links: Sequence[int]
) -> list[float]:
    """Return when each has passed its link, first come first served; it takes size x unit."""
    free_s: dict[int, float] = defaultdict(float)
    passed_s = [0.0] * len(links)
    for number in sorted(range(len(links)), key=ready_s.__getitem__):
        start_s = max(ready_s[number], free_s[links[number]])
        free_s[links[number]] = passed_s[number] = start_s + size * unit_s[number]
    return passed_s


class _DecodeRun(TableRun):
    """The decode engines, after they have served what was handed over; the clients' waits."""

    def __init__(
        self, trial: Trial, asked: RequestTable, routes: Sequence[float], moved_s: Sequence[float]
    ) -> None:
        self.order = order = sorted(range(asked.size), key=moved_s.__getitem__)
        prompts = [asked.prompt_tokens[number] for number in order]
        outputs = [asked.output_tokens[number] for number in order]
        cached = [tokens - 1 for tokens in prompts]
        table = RequestTable(prompts, outputs, cached, [moved_s[number] for number in order])
        super().__init__(trial, table, array("d", [routes[number] for number in order]))
        table.arrival_s = array("d", [asked.arrival_s[number] for number in order])

    @property
    def takers(self) -> list[int]:
        """The rank that served each, in the order in which they were asked."""
        return [rank for _, rank in sorted(zip(self.order, self.ranks, strict=True))]

    def mean_wait_s(self, ended_s: Sequence[float]) -> float:
        """Return the time from the end of prefill to the start of decode."""
        counted = range(self.first, self.last)
        waited_s = (self.table.started_s[n] - ended_s[self.order[n]] for n in counted)
        return sum(waited_s) / len(counted)

    def _wait_s(self) -> float:
        """Return by how much longer the last requests wait than the first: the queue's growth."""
        part = (self.last - self.first) // LAST
        early_s = self.table.wait_s(self.first, self.first + part) / max(1, part)
        return max(0.0, super()._wait_s() - early_s)
