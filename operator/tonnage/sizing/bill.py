"""What the replicas of a plan cost: for the demand asked, and at full use."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tonnage.catalog.gpu import RESERVED
from tonnage.sizing.cost import GpuHour, gpu_hour, rented_hour, usd_per_million_tokens
from tonnage.sizing.plan import Sizing, requests_per_s_asked
from tonnage.sizing.provenance import Figure, Input, Origin
from tonnage.sizing.schedules import shares_of_year
from tonnage.units import HOUR_S, HOURS_PER_MONTH, HOURS_PER_YEAR, MILLION


def usd_per_user(*, usd: float, num_users: float) -> float:
    """Return the share of a price or of an hourly rate that one user carries.

    >>> round(usd_per_user(usd=40_000, num_users=300))
    133
    """
    return usd / num_users


@dataclass(frozen=True, slots=True, kw_only=True)
class Commitment:
    """A reserved price beside the one that is paid, for replicas that run all the time."""

    hour: GpuHour
    """Of one GPU, reserved."""
    replicas: int
    saved_per_year: float
    """Over the price that is paid; negative: it costs more."""
    worth_from: float
    """The share of the time that a replica has to run for the reserved price to be the lower."""

    @property
    def term(self) -> str:
        return self.hour.rent.term if self.hour.rent else RESERVED


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What some replicas cost, in the currency of the hour. Rates are of output tokens."""

    hour: GpuHour
    """Of one GPU."""
    replicas: int
    gpus_per_replica: int
    usd_per_hour: float
    usd_per_million_tokens: float
    """With every replica at its load line: the least that a token of these replicas can cost."""
    usd_per_million_tokens_asked: float | None
    """Of the tokens that the demand asks for, which pay for the idle share too; where the replicas
    are too few, of those that they serve in time. None: no demand."""
    usd_per_request: float
    """Of the same requests as the price of a token asked for; without a demand at the load line."""
    usd_per_million_prompt_tokens: float
    """The same, over the tokens of their prompts instead of their outputs."""
    usd_per_hour_and_user: float | None
    """Of the users asked for, most of them idle at any time. None: a rate is asked for."""
    mean_replicas: float
    """Over a year, with what schedules add."""
    usd_per_mean_hour: float
    """The same."""
    commitments: tuple[Commitment, ...] = ()
    """For the replicas that always run."""

    @property
    def currency(self) -> str:
        return self.hour.currency

    @property
    def gpus_paid(self) -> int:
        """Those of the replicas, and where whole nodes are paid the others of their nodes."""
        return self.hour.gpus_paid(self.replicas, self.gpus_per_replica)

    @property
    def nodes(self) -> int | None:
        """Instances that the replicas take; None: GPUs are rented alone."""
        return self.hour.nodes(self.replicas, self.gpus_per_replica)

    @property
    def usd_per_hour_shared(self) -> float:
        """Of the GPUs that replicas use, as of instances that others fill."""
        return self.hour.usd * self.replicas * self.gpus_per_replica

    @property
    def usd_per_hour_whole(self) -> float:
        """Of the instances as they are billed, with the GPUs that no replica uses."""
        return self.hour.usd * self.hour.gpus_whole(self.replicas, self.gpus_per_replica)

    @property
    def usd_per_month(self) -> float:
        return self.usd_per_mean_hour * HOURS_PER_MONTH

    @property
    def usd_per_year(self) -> float:
        return self.usd_per_mean_hour * HOURS_PER_YEAR

    @property
    def usd_per_month_and_user(self) -> float | None:
        each = self.usd_per_hour_and_user
        return None if each is None else each * HOURS_PER_MONTH


def bill(sizing: Sizing, *, replicas: int, hour: GpuHour | None = None) -> Bill | None:
    """Return what so many replicas cost; None where the class has no price.

    ``hour``: another price of a GPU than the one of its class.
    """
    each = sizing.parallelism.num_gpus
    hour = hour or gpu_hour(sizing.request.gpu, each)
    if hour is None:
        return None
    demand, workload = sizing.request.demand, sizing.request.workload
    asked, users = requests_per_s_asked(sizing), demand.usual.num_users
    [year] = year_of(sizing, [replicas])
    mean_usd = hour.usd * sum(share * hour.gpus_paid(n, each) for n, share in year.items())
    running = max(1, replicas)  # of none that may be made yet, what one would cost
    running_usd = hour.usd * hour.gpus_paid(running, each)
    sustained = sizing.sustained_requests_per_s(running)
    served = min(asked / demand.peak_ratio, sustained) if asked else None
    request_usd = (mean_usd / served if served else running_usd / sustained) / HOUR_S
    return Bill(
        hour=hour,
        replicas=replicas,
        gpus_per_replica=each,
        usd_per_hour=hour.usd * hour.gpus_paid(replicas, each),
        mean_replicas=sum(number * share for number, share in year.items()),
        usd_per_mean_hour=mean_usd,
        usd_per_million_tokens=usd_per_million_tokens(
            usd_per_hour=running_usd, tokens_per_s=sustained * workload.output_tokens
        ),
        usd_per_million_tokens_asked=request_usd * MILLION / workload.output_tokens
        if served
        else None,
        usd_per_request=request_usd,
        usd_per_million_prompt_tokens=request_usd * MILLION / workload.prompt.mean_tokens,
        usd_per_hour_and_user=usd_per_user(usd=mean_usd, num_users=users) if users else None,
        commitments=tuple(_commitments(sizing, hour, replicas)),
    )


def year_of(sizing: Sizing, replicas: Sequence[int], **steps: float) -> list[dict[int, float]]:
    """Return for which share of a year, or of its steps, how many replicas run."""
    schedules, most = sizing.request.schedules, sizing.request.max_replicas or sys.maxsize
    return shares_of_year(
        schedules, replicas, lambda rate: min(most, sizing.replicas_for(rate)), **steps
    )


def _commitments(sizing: Sizing, paid: GpuHour, replicas: int) -> Iterator[Commitment]:
    """Yield what each reserved price would save for the replicas that always run.

    Those are ``minReplicas``; of the others nobody knows how long they run.
    """
    if paid.rent is None or paid.rent.term.startswith(RESERVED):
        return
    gpu, each = sizing.request.gpu, sizing.parallelism.num_gpus
    always = min(replicas, max(1, sizing.request.min_replicas))
    terms = dict.fromkeys(rent.term for rent in gpu.price.offered)
    for term in terms:
        hour = rented_hour(gpu, each, term=term) if term.startswith(RESERVED) else None
        if hour is not None:
            now, committed = (one.usd * one.gpus_paid(always, each) for one in (paid, hour))
            yield Commitment(
                hour=hour,
                replicas=always,
                saved_per_year=(now - committed) * HOURS_PER_YEAR,
                worth_from=committed / now,
            )


def inputs_with_price(sizing: Sizing) -> tuple[Input, ...]:
    """Return what the plan stands on, the price of a GPU last, if it has one."""
    hour = gpu_hour(sizing.request.gpu, sizing.parallelism.num_gpus)
    if hour is None:
        return sizing.request.inputs
    is_cited = hour.rent is not None and hour.rent.source is not None
    origin = Origin.LOOKED_UP if is_cited else Origin.GIVEN
    return (*sizing.request.inputs, Input(figure=Figure.PRICE, value=str(hour), origin=origin))


def tokens_per_s_asked(sizing: Sizing) -> float | None:
    """Return the output tokens per second that the demand means; None where none is known."""
    rate = requests_per_s_asked(sizing)
    return None if rate is None else rate * sizing.request.workload.output_tokens
