"""What a plan costs: GPU hours rented or owned, for the demand asked and at full use."""

import math
from dataclasses import dataclass
from typing import Literal

from tonnage.catalog.gpu import Gpu, Rent, smallest
from tonnage.units import HOUR_S, KB, MILLION, significant


def usd_per_million_tokens(*, usd_per_hour: float, tokens_per_s: float) -> float:
    """Return the price of a million tokens at a sustained rate.

    >>> round(usd_per_million_tokens(usd_per_hour=16, tokens_per_s=7200), 2)
    0.62
    """
    return usd_per_hour * MILLION / (HOUR_S * tokens_per_s)


def owned_usd_per_hour(
    *,
    purchase_usd: float,
    amortization_hours: float,
    watts: float = 0.0,
    usd_per_kwh: float = 0.0,
    upkeep_usd_per_hour: float = 0.0,
) -> float:
    """Return the hourly cost of an owned GPU: its price over its life, its power, its upkeep.

    >>> owned_usd_per_hour(purchase_usd=30_000, amortization_hours=30_000, watts=700,
    ...     usd_per_kwh=0.1)
    1.07
    """
    return purchase_usd / amortization_hours + watts / KB * usd_per_kwh + upkeep_usd_per_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHour:
    """An hour of one GPU: its price, and the parts of it, written for a person."""

    basis: Literal["rented", "owned"]
    usd: float
    """In ``currency``, as all amounts of a bill are."""
    parts: str
    currency: str = "USD"
    rent: Rent | None = None
    """What the price holds for; None: the GPU is owned."""
    gpus_per_node: int | None = None
    """Of the instance that holds a replica, or of a node. None: a GPU is paid alone."""
    is_whole: bool = False
    """Instances are paid as a whole, with the GPUs that no replica uses."""

    def __str__(self) -> str:
        if self.rent is None:
            return f"owned: {self.parts} per GPU and hour"
        basis = f": {self.rent.basis}" if self.rent.basis else ""
        return f"{self.parts} per GPU and hour{basis}"

    def nodes(self, replicas: int, gpus_per_replica: int) -> int | None:
        """Return the instances that so many replicas take; None: GPUs are rented alone."""
        if self.gpus_per_node is None:
            return None
        if gpus_per_replica > self.gpus_per_node:
            return replicas * math.ceil(gpus_per_replica / self.gpus_per_node)
        return math.ceil(replicas / (self.gpus_per_node // gpus_per_replica))

    def gpus_paid(self, replicas: int, gpus_per_replica: int) -> int:
        if self.is_whole:
            return self.gpus_whole(replicas, gpus_per_replica)
        return replicas * gpus_per_replica

    def gpus_whole(self, replicas: int, gpus_per_replica: int) -> int:
        """Return the GPUs of the instances that so many replicas take."""
        nodes = self.nodes(replicas, gpus_per_replica)
        if nodes is None or self.gpus_per_node is None:
            return replicas * gpus_per_replica
        return nodes * self.gpus_per_node

    def usd_per_replica(self, gpus_per_replica: int) -> float:
        """Return the hourly cost of one replica where its nodes are full."""
        node = (self.is_whole and self.gpus_per_node) or 1
        replicas = max(1, node // gpus_per_replica)
        return self.usd * self.gpus_paid(replicas, gpus_per_replica) / replicas


def rented_hour(gpu: Gpu, num_gpus: int, *, term: str | None = None) -> GpuHour | None:
    """Return the hour of a rented GPU in the smallest instance that holds so many.

    None where no such instance has a price. A replica over several nodes takes whole nodes.
    """
    price = gpu.price
    rents = price.paid() if term is None else price.on_term(term)
    rent = smallest(rents, min(num_gpus, gpu.gpus_per_node))
    if rent is None:
        return None
    usd, currency = rent.usd_per_gpu_hour, price.currency
    return GpuHour(
        basis="rented",
        usd=usd,
        parts=f"{amount(usd)} {currency}",
        currency=currency,
        rent=rent,
        gpus_per_node=rent.num_gpus or (gpu.gpus_per_node if price.whole_nodes else None),
        is_whole=price.whole_nodes,
    )


def owned_hour(gpu: Gpu) -> GpuHour | None:
    """Return the hour of an owned GPU; None where no administrator spreads its purchase price.

    Counts the board at its rated power, all hours alike; the host belongs to the upkeep.
    """
    price = gpu.price
    if price.purchase_usd is None or price.amortization_hours is None:
        return None
    # A class with a price of power has its watts: the catalogue refuses it otherwise.
    watts, usd_per_kwh = gpu.tdp_watts or 0.0, price.power_usd_per_kwh or 0.0
    usd = owned_usd_per_hour(
        purchase_usd=price.purchase_usd,
        amortization_hours=price.amortization_hours,
        watts=watts,
        usd_per_kwh=usd_per_kwh,
        upkeep_usd_per_hour=price.upkeep_usd_per_hour,
    )
    currency = price.currency
    power = (
        f"{watts:.0f} W at {significant(usd_per_kwh)} {currency}/kWh" if usd_per_kwh else "no power"
    )
    upkeep = (
        f"{price.upkeep_usd_per_hour:.2f} {currency} upkeep"
        if price.upkeep_usd_per_hour
        else "no upkeep"
    )
    spread = f"{price.purchase_usd:,.0f} {currency} / {price.amortization_hours:,.0f} h"
    parts = f"{spread} + {power} + {upkeep} = {usd:.2f} {currency}"
    return GpuHour(
        basis="owned",
        usd=usd,
        parts=parts,
        currency=currency,
        gpus_per_node=gpu.gpus_per_node if price.whole_nodes else None,
        is_whole=price.whole_nodes,
    )


def gpu_hour(gpu: Gpu, num_gpus: int) -> GpuHour | None:
    """Return the hour of one GPU of a replica that takes so many.

    Owned where an administrator says so, else rented. None where the class has neither price.
    """
    return owned_hour(gpu) or rented_hour(gpu, num_gpus)


def fleet_usd_per_hour(gpu: Gpu, *, gpus_per_replica: int, replicas: int) -> float | None:
    """Return what so many replicas cost an hour; None where they have no price."""
    hour = gpu_hour(gpu, gpus_per_replica)
    return None if hour is None else hour.usd * hour.gpus_paid(replicas, gpus_per_replica)


def least_usd_per_gpu_hour(gpu: Gpu) -> float | None:
    """Return what an hour of one GPU costs at least, whatever the replica takes."""
    owned = owned_hour(gpu)
    usd = [rent.usd_per_gpu_hour for rent in gpu.price.paid()]
    return owned.usd if owned else min(usd, default=None)


def cents(usd: float) -> float:
    """Return an amount in whole cents: sums of prices are not exact.

    >>> cents(0.1 + 0.2)
    0.3
    """
    return round(usd, 2)


def amount(usd: float) -> str:
    """Write the price of a GPU: cents, and what is beyond them.

    >>> amount(6.88), amount(0.8048), amount(3.43088125), amount(2)
    ('6.88', '0.8048', '3.4309', '2.00')
    """
    whole, _, decimals = f"{usd:.4f}".partition(".")
    return f"{whole}.{decimals.rstrip('0').ljust(2, '0')}"
