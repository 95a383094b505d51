"""What replicas cost, in words: the parts of a bill, and why there is none."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tonnage.catalog.gpu import Gpu
from tonnage.sizing.bill import Bill, Commitment, bill
from tonnage.sizing.cost import GpuHour, amount, rented_hour
from tonnage.sizing.plan import Sizing
from tonnage.units import DAY_S, MILLION, count_of, significant


def tokens_per_day(tokens_per_s: float) -> str:
    """Write a rate of output tokens as people plan offline work.

    >>> tokens_per_day(11_574.08)
    '1000 million output tokens per day'
    """
    return f"{significant(tokens_per_s * DAY_S / MILLION)} million output tokens per day"


def bill_rows(sizing: Sizing, found: Bill) -> Iterator[tuple[str, str]]:
    """Yield what a user costs, and what owned GPUs would cost rented."""
    if found.usd_per_hour_and_user is not None:
        yield "cost of users", _of_users(sizing, found)
    hour = rented_hour(sizing.request.gpu, sizing.parallelism.num_gpus)
    rented = bill(sizing, replicas=found.replicas, hour=hour)
    if found.hour.basis == "owned" and hour and rented:
        yield (
            "if rented",
            f"{hour}, {rented.usd_per_hour:.2f} {rented.currency} per hour in all, "
            f"{rented.usd_per_million_tokens:.2f} {rented.currency} per million output tokens",
        )


def per_hour_written(found: Bill) -> str:
    """Write what an hour costs: of full instances the share, and of the instances as billed."""
    shared, whole = (f"{usd:.2f}" for usd in (found.usd_per_hour_shared, found.usd_per_hour_whole))
    return both_written(shared, whole, f"{found.currency} per hour")


def both_written(shared: str, whole: str, unit: str) -> str:
    """Write an amount as it is paid by the GPU, and by the instance where that is another."""
    others = f" as a share of full instances, {whole} in whole ones"
    return f"{shared} {unit}{others if shared != whole else ''}"


def nodes_written(found: Bill) -> Iterator[str]:
    """Yield the instances that replicas leave GPUs of idle, and how many of these are used."""
    used, in_all = (
        found.replicas * found.gpus_per_replica,
        found.hour.gpus_whole(found.replicas, found.gpus_per_replica),
    )
    if found.nodes is not None and (found.hour.is_whole or in_all > used):
        name = found.hour.rent.instance if found.hour.rent else ""
        machines = f"{found.nodes} x {name}" if name else count_of(found.nodes, "node")
        yield (
            f"{machines} of {count_of(found.hour.gpus_per_node or 1, 'GPU')}, "
            f"{used} of {count_of(in_all, 'GPU')} used, {in_all - used} idle"
        )


def commitment_written(found: Commitment) -> str:
    """Say what a commitment saves a year, and from which use on."""
    unit, saved = found.hour.currency, found.saved_per_year
    replicas = count_of(found.replicas, "replica that always runs", "replicas that always run")
    change = f"{abs(saved):,.0f} {unit} per year {'less' if saved >= 0 else 'more'}"
    worth = f"; lower for a replica that runs more than {found.worth_from:.0%} of the time"
    return (
        f"{amount(found.hour.usd)} {unit} per GPU and hour, {change} for the {replicas} "
        f"(minReplicas){worth if found.worth_from < 1 else ''}"
    )


def _of_users(sizing: Sizing, found: Bill) -> str:
    demand = sizing.request.demand.usual
    carried = sizing.at_capacity.num_running / demand.duty_fraction
    return (
        f"{found.usd_per_hour_and_user:.4f} {found.currency} per hour and user, "
        f"{found.usd_per_month_and_user:.2f} per month: "
        f"{count_of(f'{demand.num_users:.0f}', 'user')}, each in flight {demand.duty_fraction:.0%} "
        f"of the time; a replica carries {significant(carried)}"
    )


def price_notes(hours: Iterable[tuple[str, GpuHour]]) -> Iterator[str]:
    """Yield provider, region, term and date, with the GPU classes and instances of these prices."""
    machines: dict[str, dict[str, None]] = {}
    for name, hour in hours:
        if hour.rent:
            common = replace(hour.rent, instance="", num_gpus=None).basis
            machines.setdefault(common, {})[f"{name} {hour.rent.machine}".rstrip()] = None
    yield from (f"prices: {common}; {', '.join(names)}" for common, names in machines.items())


def missing_price(gpu: Gpu, num_gpus: int) -> str:
    """Say why a replica of so many GPUs has no price."""
    price = gpu.price
    if price.missing:
        return price.missing
    if rents := price.paid():
        listed = ", ".join(rent.machine for rent in rents)
        return f"no price is known of an instance with {num_gpus} {gpu.name}, only of {listed}"
    if price.offered:
        return f"{gpu.name} has no {price.term} price"
    if price.purchase_usd is None:
        return f"{gpu.name} has no rental price"
    return f"{gpu.name} has no rental price; price.amortization_hours would spread its purchase"
