"""What a plan costs: GPU hours rented or owned, for the demand asked and at full use."""

from dataclasses import dataclass
from typing import Literal

from tonnage.catalog.gpu import Gpu
from tonnage.units import HOUR_S, KB, MILLION, significant


def usd_per_million_tokens(*, usd_per_hour: float, tokens_per_s: float) -> float:
    """Return the price of a million tokens at a sustained rate.

    >>> round(usd_per_million_tokens(usd_per_hour=16, tokens_per_s=7200), 2)
    0.62
    """
    return usd_per_hour * MILLION / (HOUR_S * tokens_per_s)


def power_usd_per_hour(*, watts: float, usd_per_kwh: float) -> float:
    """Return the cost of drawing this power for an hour.

    >>> power_usd_per_hour(watts=500, usd_per_kwh=0.1)
    0.05
    """
    return watts / KB * usd_per_kwh


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
    power_usd = power_usd_per_hour(watts=watts, usd_per_kwh=usd_per_kwh)
    return purchase_usd / amortization_hours + power_usd + upkeep_usd_per_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHour:
    """An hour of one GPU: its price, and what that is made of, written for a person."""

    basis: Literal["rented", "owned"]
    usd: float
    """In ``currency``, as all amounts of a bill are."""
    made_of: str
    currency: str = "USD"

    def __str__(self) -> str:
        return f"{self.basis}: {self.made_of} per GPU and hour"


def rented_hour(gpu: Gpu) -> GpuHour | None:
    """Return the hour of a rented GPU; None where the class has no rental price."""
    price = gpu.price
    usd, currency = price.rent_usd_per_hour, price.currency
    if usd is None:
        return None
    made_of = " ".join(filter(None, (f"{usd:.2f}", currency, price.rate)))
    return GpuHour(basis="rented", usd=usd, made_of=made_of, currency=currency)


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
    made_of = f"{spread} + {power} + {upkeep} = {usd:.2f} {currency}"
    return GpuHour(basis="owned", usd=usd, made_of=made_of, currency=currency)


def gpu_hour(gpu: Gpu) -> GpuHour | None:
    """Return the hour of one GPU: owned where an administrator says so, else rented.

    None where the class has neither price.
    """
    return owned_hour(gpu) or rented_hour(gpu)


def usd_per_hour_per_gpu(gpu: Gpu) -> float | None:
    """Return what an hour of one GPU costs; None where the class has no price."""
    hour = gpu_hour(gpu)
    return None if hour is None else hour.usd
