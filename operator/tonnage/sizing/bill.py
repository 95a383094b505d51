"""What the replicas of a plan cost: for the demand asked, and at full use."""

from collections.abc import Iterator
from dataclasses import dataclass

from tonnage.sizing.cost import GpuHour, gpu_hour, rented_hour, usd_per_million_tokens
from tonnage.sizing.plan import Sizing, requests_per_s_asked
from tonnage.units import DAY_S, HOURS_PER_MONTH, MILLION, significant


def usd_per_user(*, usd: float, num_users: float) -> float:
    """Return the share of a price or of an hourly rate that one user carries.

    >>> round(usd_per_user(usd=40_000, num_users=300))
    133
    """
    return usd / num_users


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What some replicas cost, in the currency of the hour. Rates are of output tokens."""

    hour: GpuHour
    """Of one GPU."""
    usd_per_hour: float
    usd_per_million_tokens: float
    """With every replica at its load line: the least that a token can cost."""
    usd_per_million_tokens_asked: float | None
    """Of the tokens that the demand asks for, which pay for the idle share too. None: no demand."""
    usd_per_hour_and_request: float
    """Of one request in flight, at the load line."""
    usd_per_hour_and_user: float | None
    """Of the users asked for, most of whom are idle at any time. None: a rate is asked for."""

    @property
    def currency(self) -> str:
        return self.hour.currency

    @property
    def usd_per_month(self) -> float:
        return self.usd_per_hour * HOURS_PER_MONTH

    @property
    def usd_per_month_and_user(self) -> float | None:
        each = self.usd_per_hour_and_user
        return None if each is None else each * HOURS_PER_MONTH


def bill(sizing: Sizing, *, replicas: int, hour: GpuHour | None = None) -> Bill | None:
    """Return what so many replicas cost; None where the class has no price.

    ``hour``: another price of a GPU than the one of its class.
    """
    hour = hour or gpu_hour(sizing.request.gpu)
    if hour is None:
        return None
    one_usd = hour.usd * sizing.flags.parallelism.num_gpus
    asked, users = tokens_per_s_asked(sizing), sizing.request.demand.num_users
    fleet_usd = one_usd * replicas
    return Bill(
        hour=hour,
        usd_per_hour=fleet_usd,
        usd_per_million_tokens=usd_per_million_tokens(
            usd_per_hour=one_usd, tokens_per_s=sizing.output_tokens_per_s
        ),
        usd_per_million_tokens_asked=usd_per_million_tokens(
            usd_per_hour=fleet_usd, tokens_per_s=asked
        )
        if asked
        else None,
        usd_per_hour_and_request=usd_per_user(
            usd=one_usd, num_users=sizing.at_capacity.num_running
        ),
        usd_per_hour_and_user=usd_per_user(usd=fleet_usd, num_users=users) if users else None,
    )


def tokens_per_s_asked(sizing: Sizing) -> float | None:
    """Return the output tokens per second that the demand means; None where none is known."""
    rate = requests_per_s_asked(sizing)
    return None if rate is None else rate * sizing.request.workload.output_tokens


def tokens_per_day(tokens_per_s: float) -> str:
    """Write a rate of output tokens as people plan offline work.

    >>> tokens_per_day(11_574.08)
    '1000 million output tokens per day'
    """
    return f"{significant(tokens_per_s * DAY_S / MILLION)} million output tokens per day"


def full_use(sizing: Sizing) -> str:
    """Name the state at which a replica is fully used."""
    is_memory = sizing.request.slo.is_offline and sizing.limited_by == "KVCache"
    return "memory ceiling" if is_memory else "load line"


def bill_lines(sizing: Sizing, found: Bill, *, replicas: int) -> Iterator[str]:
    """Yield what stands behind a bill, a line each: requests, users, days, owned beside rented."""
    yield f"{found.usd_per_hour_and_request:.4f} {found.currency} per hour and concurrent request"
    if found.usd_per_hour_and_user is not None:
        yield _of_users(sizing, found)
    if sizing.request.slo.is_offline and found.usd_per_million_tokens_asked is not None:
        yield (
            f"for the tokens asked: {found.usd_per_million_tokens_asked:.2f} {found.currency} per "
            "million, "
            f"{found.usd_per_month:,.0f} {found.currency} per month"
        )
    if found.hour.basis == "owned":
        yield str(found.hour)
        yield from _rented_instead(sizing, replicas)


def _of_users(sizing: Sizing, found: Bill) -> str:
    demand = sizing.request.demand
    carried = sizing.at_capacity.num_running / demand.duty_fraction
    return (
        f"{found.usd_per_hour_and_user:.4f} {found.currency} per hour and user, "
        f"{found.usd_per_month_and_user:.2f} per month: {demand.num_users:.0f} users, each in "
        f"flight {demand.duty_fraction:.0%} of the time; a replica carries {significant(carried)}"
    )


def _rented_instead(sizing: Sizing, replicas: int) -> Iterator[str]:
    rented = rented_hour(sizing.request.gpu)
    found = bill(sizing, replicas=replicas, hour=rented) if rented else None
    if found:
        yield (
            f"{found.hour}, {found.usd_per_hour:.2f} {found.currency} per hour in all, "
            f"{found.usd_per_million_tokens:.2f} {found.currency} per million output tokens"
        )
