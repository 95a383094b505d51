"""What it costs: per hour, per million tokens, per user."""

from tonnage.units import HOUR_S, KB, MILLION


def usd_per_million_tokens(*, usd_per_hour: float, tokens_per_s: float) -> float:
    """Return the price of a million tokens at a sustained rate.

    >>> round(usd_per_million_tokens(usd_per_hour=16, tokens_per_s=7200), 2)
    0.62
    """
    return usd_per_hour * MILLION / (HOUR_S * tokens_per_s)


def usd_per_user(*, usd: float, num_users: float) -> float:
    """Return the share of a price or of an hourly rate that one user carries.

    >>> round(usd_per_user(usd=40_000, num_users=300))
    133
    """
    return usd / num_users


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
    power_usd = watts / KB * usd_per_kwh
    return purchase_usd / amortization_hours + power_usd + upkeep_usd_per_hour


def bandwidth_per_usd(*, memory_bytes_per_s: float, price_usd: float) -> float:
    """Return bytes per second of memory bandwidth for each dollar of price."""
    return memory_bytes_per_s / price_usd
