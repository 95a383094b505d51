"""Replicas of prefill and decode apart, against all pairs that a sweep of the reference finds.

    python tests/bench/roles.py --out roles.csv [--first 1] [--number 100]
    python tests/bench/roles.py --summary roles.csv

Random workloads, one split for both roles. The sweep serves every pair, the fewest replicas first,
with some numbers of slots and token budgets of each role, the plan's among them, by the reference
engine (``tests/support``): it shares no code with the product's, has other requests, and hands over
by code of its own. The first total with a pair that keeps every target is the truth; the plan is as
far from it as its farther role is, from the nearest pair of that total. CSV row by row: a run that
was stopped goes on where it was.
"""

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import click
from capacity import Row, append, rows_in
from capacity_grid import (
    PLATFORMS,
    SCVS,
    TPOT_FACTORS,
    TTFT_LIMITS_S,
    Case,
    engine_limits,
)
from capacity_grid import _feasible as a_feasible_case
from capacity_grid import _request as a_request
from capacity_grid import _workload as a_workload
from fleet import Draw, draws, traffic_of

from reference_engine import Request, Served
from reference_fast import FastServer
from reference_router import at_random, serve
from reference_step_time import Figures, figures
from tonnage.api.hardware import ParallelSizes
from tonnage.sizing.errors import SizingError
from tonnage.sizing.parallelism.draft import rank_of
from tonnage.sizing.plan import size_with
from tonnage.sizing.request import Flags, SizingRequest
from tonnage.sizing.roles import Pair, decode_request, prefill_request, weigh_roles
from tonnage.sizing.serving.flags import replica_under, widest_fitting
from tonnage.sizing.serving.replica import Replica
from tonnage.sizing.workload import Demand

GRID = "roles "
QUANTILE = 0.95
LINKS_BYTES_PER_S = (5e9, 25e9, 50e9, 450e9)
MOST_OF_UNIFIED = 8.0
"""Replicas of a fleet for both that a workload takes at most, nearly."""
COUNTED, WARM_UP, TAIL = 3000, 800, 200
"""Requests, at least."""
COUNTED_CROWDS, WARM_UP_CROWDS = 4, 3
"""Times the requests in flight, at least; one more crowd leaves at the end."""
SEED = 7000
PREFILL_FLAGS = ((256, 8192), (16, 8192), (2, 8192), (16, 2048))
"""Slots and token budgets."""
STRIDE = 0.6
"""Ratio of neighbouring numbers of decode slots."""
MOST_REPLICAS = 40
COLUMNS = ("workload", "prefill", "decode", "best", "off", "fleet_for_both", "link_gb_per_s")
NEAR = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A workload, how much of it there is, and what its caches move over."""

    case: Case
    rate: float
    link_bytes_per_s: float

    @property
    def request(self) -> SizingRequest:
        return self.case.request


def questions() -> Iterator[Question]:
    """Yield random workloads that one split serves, of at most some replicas; always the same."""
    for number in itertools.count(1):
        chance = random.Random(f"{GRID}{number}")  # noqa: S311
        model, gpu, split = chance.choice(PLATFORMS)
        if split.data > 1:
            continue
        workload, words = a_workload(chance)
        scv, share, link = (
            chance.choice(SCVS),
            chance.uniform(0.5, MOST_OF_UNIFIED),
            chance.choice(LINKS_BYTES_PER_S),
        )
        asked = (QUANTILE, chance.choice(TPOT_FACTORS), chance.choice(TTFT_LIMITS_S))
        sizes = ParallelSizes(tensor=split.tensor, pipeline=split.pipeline, data=split.data)
        name = f"{number:03d} {model} {gpu} {split} {words} scv{scv:g}"
        request = replace(
            a_request(model, gpu, workload, scv=scv), sizes=sizes, num_gpus=split.num_gpus
        )
        try:
            case = a_feasible_case(name, request, split, asked)
            if case is None:
                continue
            rate = share * size_with(case.request, split).goodput_requests_per_s
        except SizingError:
            continue
        request = replace(case.request, demand=Demand(requests_per_s=rate))
        yield Question(case=replace(case, request=request), rate=rate, link_bytes_per_s=link)


@dataclass(kw_only=True)
class Sweep:
    """Every pair of replicas for a question."""

    question: Question
    planned: Pair | None
    """Its flags are tried too."""
    _read: dict[tuple[int, Replica], list[Served]] = field(default_factory=dict)
    _makes: dict[tuple[int, Replica], bool] = field(default_factory=dict)
    _figures: dict[Replica, Figures] = field(default_factory=dict)

    @cached_property
    def arrived(self) -> list[Draw]:
        traffic = traffic_of(self.question.request)
        found = draws(traffic, self.counted.stop + TAIL + self.crowd, SEED)
        return [replace(each, at=each.at / self.question.rate) for each in found]

    @property
    def crowd(self) -> int:
        """Requests in flight where both targets are just kept: by Little's law, no fewer."""
        request = self.question.request
        [ttft], [tpot] = request.slo.ttft, request.slo.tpot
        each_s = ttft.limit_s + request.workload.output_tokens * tpot.limit_s
        return math.ceil(self.question.rate * each_s)

    @cached_property
    def counted(self) -> range:
        """Those of the requests that count: engines are full by then."""
        first = max(WARM_UP, WARM_UP_CROWDS * self.crowd)
        return range(first, first + max(COUNTED, COUNTED_CROWDS * self.crowd))

    @cached_property
    def prefills(self) -> list[Replica]:
        asked = prefill_request(self.question.request, self.question.rate, 0.0)
        own = [self.planned.prefill.replica] if self.planned else []
        return [*own, *self._replicas(asked, PREFILL_FLAGS)]

    @cached_property
    def decodes(self) -> list[Replica]:
        asked = decode_request(self.question.request, self.question.rate)
        widest = widest_fitting(asked, rank_of(asked, self.question.case.split)).flags
        slots, ladder = widest.max_num_seqs / STRIDE, []
        while slots >= 1:
            ladder.append((int(slots), widest.max_num_batched_tokens))
            slots *= STRIDE
        own = [self.planned.decode.replica] if self.planned else []
        return [*own, *self._replicas(asked, ladder)]

    def _replicas(
        self, request: SizingRequest, tried: Iterable[tuple[int, int]]
    ) -> Iterator[Replica]:
        split = self.question.case.split
        for slots, tokens in tried:
            flags = Flags(
                max_num_seqs=slots,
                max_num_batched_tokens=tokens,
                gpu_memory_utilization=request.engine.constants.gpu_memory_utilization,
                parallelism=split,
            )
            try:
                yield replica_under(request, rank_of(request, split), flags)
            except SizingError:
                continue

    def best(self) -> list[tuple[int, int]]:
        """Return the pairs of the fewest replicas with which every target is kept."""
        for total in range(2, MOST_REPLICAS):
            pairs = [(first, total - first) for first in range(1, total)]
            found = [pair for pair in pairs if self.keeps(*pair)]
            if found:
                return found
        return []

    def keeps(self, num_prefill: int, num_decode: int) -> bool:
        """Tell whether so many keep every target, each role with some of its flags."""
        return any(
            self._is_kept(self._chained(served, num_prefill, num_decode, making))
            for reading in self.prefills
            if self._is_kept(served := self._prefilled(num_prefill, reading))
            for making in self.decodes
            if self._makes_alone(num_decode, making)
        )

    def _prefilled(self, number: int, replica: Replica) -> list[Served]:
        if (number, replica) not in self._read:
            asked = [
                Request(
                    number=index,
                    prompt_tokens=each.prompt_tokens,
                    output_tokens=1,
                    cached_tokens=each.cached_tokens,
                    arrival_s=each.at,
                )
                for index, each in enumerate(self.arrived)
            ]
            self._read[number, replica] = self._serve(asked, number, replica, "prefill")
        return self._read[number, replica]

    def _makes_alone(self, number: int, replica: Replica) -> bool:
        """Tell whether decode keeps the targets where prefill and its transfer take no time."""
        if (number, replica) not in self._makes:
            asked = [self._handed(index, each.at) for index, each in enumerate(self.arrived)]
            served = self._serve(asked, number, replica, "decode")
            self._makes[number, replica] = self._is_kept(served)
        return self._makes[number, replica]

    def _chained(
        self, read: Sequence[Served], num_prefill: int, num_decode: int, replica: Replica
    ) -> list[Served]:
        """Move each cache once the links of both its engines have passed it, then decode it."""
        layouts = (self.prefills[0].layout, replica.layout)
        sent_s, taken_s = [0.0] * num_prefill, [0.0] * num_decode
        moved: list[Request] = []
        for each in sorted(read, key=lambda served: served.ended_s):
            number, tokens = each.request.number, each.request.prompt_tokens
            took_s = max(layout.bytes_of_sequence(tokens) for layout in layouts)
            took_s /= self.question.link_bytes_per_s
            there_s = 0.0
            for free_s, drawn in ((sent_s, self._senders), (taken_s, self._takers)):
                engine = drawn[number] % len(free_s)
                free_s[engine] = max(free_s[engine], each.ended_s) + took_s
                there_s = max(there_s, free_s[engine])
            moved.append(self._handed(number, there_s))
        moved.sort(key=lambda request: request.arrival_s)
        made = self._serve(moved, num_decode, replica, "decode")
        for served in made:
            arrived_s = self.arrived[served.request.number].at
            served.request = replace(served.request, arrival_s=arrived_s)
        return made

    @cached_property
    def _senders(self) -> list[int]:
        return self._routes("links")

    @cached_property
    def _takers(self) -> list[int]:
        """Of decode: drawn apart from the engines that serve, which stay as in other runs."""
        return self._routes("links of decode")

    def _routes(self, name: str) -> list[int]:
        chance = random.Random(f"{SEED} {name}")  # noqa: S311
        return [chance.randrange(1 << 20) for _ in self.arrived]

    def _handed(self, index: int, arrival_s: float) -> Request:
        drawn = self.arrived[index]
        return Request(
            number=index,
            prompt_tokens=drawn.prompt_tokens,
            output_tokens=drawn.output_tokens,
            cached_tokens=drawn.prompt_tokens - 1,
            arrival_s=arrival_s,
        )

    def _serve(
        self, asked: Sequence[Request], number: int, replica: Replica, name: str
    ) -> list[Served]:
        request = self.question.request
        limits = engine_limits(replica, request, replica.max_num_seqs or 1)
        if replica not in self._figures:
            self._figures[replica] = figures(replica, request.context_tokens)
        found = self._figures[replica]
        servers = [FastServer(limits, found, num_ranks=1) for _ in range(number)]
        return list(serve(servers, at_random(servers, f"{SEED} {name}"), asked))

    def _is_kept(self, served: Sequence[Served]) -> bool:
        seen = [each for each in served if each.request.number in self.counted]
        slo = self.question.request.slo
        late = ((target, sum(each.ttft_s > target.limit_s for each in seen)) for target in slo.ttft)
        slow = (
            (target, sum((each.tpot_s or 0.0) > target.limit_s for each in seen))
            for target in slo.tpot
        )
        missed = itertools.chain(late, slow)
        return all(number <= (1 - target.quantile) * len(seen) for target, number in missed)


def row_of(question: Question) -> Row:
    """Return what was planned, and how far it is from the truth."""
    unified = size_with(question.request, question.case.split)
    weighed = weigh_roles(unified, unified.replicas, question.link_bytes_per_s)
    found = weighed.pair
    best = Sweep(question=question, planned=found).best()
    off = "refused"
    if found and best:
        roles = found.roles
        off = str(min(max(abs(roles.num_prefill - p), abs(roles.num_decode - d)) for p, d in best))
    return {
        "workload": question.case.name,
        "prefill": str(found.roles.num_prefill if found else weighed.refusal),
        "decode": str(found.roles.num_decode if found else ""),
        "best": " ".join(f"{p}+{d}" for p, d in best),
        "off": "0" if not found and not best else off,
        "fleet_for_both": str(unified.replicas),
        "link_gb_per_s": f"{question.link_bytes_per_s / 1e9:g}",
    }


def summary(rows: Sequence[Row]) -> str:
    off = [row["off"] for row in rows]
    near = sum(each != "refused" and int(each) <= NEAR for each in off)
    exact = sum(each == "0" for each in off)
    refused = sum(each == "refused" for each in off)
    return (
        f"{len(rows)} workloads: {exact} with a pair of the fewest replicas, {near} within one "
        f"replica of each role, {refused} with an answer of one side only"
    )


@click.command()
@click.option("--out", type=click.Path(path_type=Path))
@click.option("--summary", "summed", type=click.Path(path_type=Path))
@click.option("--first", default=1)
@click.option("--number", default=100)
def main(*, out: Path | None, summed: Path | None, first: int, number: int) -> None:
    if summed is not None:
        click.echo(summary(rows_in(summed)))
        return
    if out is None:
        raise click.UsageError("--out or --summary")
    known = {row["workload"] for row in rows_in(out)} if out.exists() else set()
    for question in itertools.islice(questions(), first - 1, first - 1 + number):
        if question.case.name not in known:
            row = row_of(question)
            append(out, row, COLUMNS)
            click.echo(row)


if __name__ == "__main__":
    main()
