"""What GPUs of a class cost, and what each price holds for: provider, term, date, instance."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import ConfigDict, Field

from tonnage.units import count_of

FORBID_EXTRA: Final = ConfigDict(extra="forbid", allow_inf_nan=False)
PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
_Amount = Annotated[float, Field(ge=0)]

ON_DEMAND: Final = "on demand"
SPOT: Final = "spot"
RESERVED: Final = "reserved"
"""Begins the name of each term that commits a buyer, such as "reserved 1 year"."""
TERMS: Final[Mapping[str, str]] = {
    "onDemand": ON_DEMAND,
    "spot": SPOT,
    "reserved": RESERVED,
    "reserved1Year": f"{RESERVED} 1 year",
    "reserved3Years": f"{RESERVED} 3 years",
}
"""The terms by the names that a price list has for them."""

ASKED_OF_PRICES: Final = frozenset({"missing", "whole_nodes", "provider"})
"""Fields of a price that an answer sets: no file does, since the operator pays by the replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a figure stands: a key of ``sources.toml`` and what it says there."""

    __pydantic_config__ = FORBID_EXTRA

    key: str
    quote: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rent:
    """An hour of an instance, or of one GPU. What is not known of it is empty."""

    __pydantic_config__ = FORBID_EXTRA

    usd_per_hour: PositiveFloat
    """Of the whole instance; of one GPU where ``num_gpus`` is not given."""
    num_gpus: PositiveInt | None = None
    """Of the instance. None: a GPU costs this whatever the instance."""
    instance: str = ""
    provider: str = ""
    region: str = ""
    term: str = ON_DEMAND
    date: Annotated[str, Field(pattern=r"^(\d{4}-\d{2}(-\d{2})?)?$")] = ""
    """Year and month, or day, on which the price held."""
    source: Source | None = None
    """None: somebody's own price."""

    @property
    def usd_per_gpu_hour(self) -> float:
        return self.usd_per_hour / (self.num_gpus or 1)

    def holds(self, num_gpus: int) -> bool:
        """Tell whether so many GPUs fit into one instance."""
        return self.num_gpus is None or num_gpus <= self.num_gpus

    @property
    def machine(self) -> str:
        """Name the instance with its GPUs; empty: none is known.

        >>> Rent(usd_per_hour=55.04, num_gpus=8, instance="p5.48xlarge").machine
        'p5.48xlarge (8 GPUs)'
        """
        if self.num_gpus is None:
            return self.instance
        gpus = count_of(self.num_gpus, "GPU")
        return f"{self.instance} ({gpus})" if self.instance else f"instance of {gpus}"

    @property
    def basis(self) -> str:
        """Say what the price holds for, as far as that is known.

        >>> Rent(usd_per_hour=2.1, term="spot").basis
        'yours, spot'
        """
        place = " ".join(filter(None, (self.provider, self.region)))
        own = "" if self.source else "yours"
        return ", ".join(filter(None, (own, place, self.term, self.date, self.machine)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What one GPU costs, rented or owned. Administrators override both."""

    __pydantic_config__ = FORBID_EXTRA

    rents: tuple[Rent, ...] = ()
    rent_usd_per_hour: PositiveFloat | None = None
    """Of one GPU, on terms that are not said: the short form of one of ``rents``."""
    purchase_usd: PositiveFloat | None = None
    amortization_hours: PositiveFloat | None = None
    """Set by an administrator who owns the GPUs: the purchase price is then spread over it."""
    power_usd_per_kwh: PositiveFloat | None = None
    upkeep_usd_per_hour: _Amount = 0.0
    """Of one owned GPU: host, space, cooling, people."""
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$")] = "USD"
    """A label: of a buyer's own price every amount is in it, whatever the name of the field."""
    term: str = ON_DEMAND
    """Of several rents, the one that is paid."""
    provider: str = ""
    """Of several, the one that is paid; empty: the first that is listed."""
    whole_nodes: bool = False
    """Instances are paid as a whole, with the GPUs that no replica uses."""
    missing: str = ""
    """Why there is no price, in words."""
    source: Source | None = None
    """Of the rent in its short form."""

    def __post_init__(self) -> None:
        """Refuse half the price of an owned GPU, and a rent in two forms: one would have to guess.

        Raises:
            ValueError: naming the keys.
        """
        if self.rents and self.rent_usd_per_hour is not None:
            raise ValueError("price.rents and price.rent_usd_per_hour: give one of both")
        if self.amortization_hours is None:
            if self.power_usd_per_kwh is not None or self.upkeep_usd_per_hour:
                raise ValueError("price: power and upkeep of an owned GPU need amortization_hours")
        elif self.purchase_usd is None:
            raise ValueError("price.amortization_hours needs price.purchase_usd")

    @property
    def offered(self) -> tuple[Rent, ...]:
        """Every rent that is known, on whatever term."""
        if self.rent_usd_per_hour is None:
            return self.rents
        return (Rent(usd_per_hour=self.rent_usd_per_hour, term="", source=self.source),)

    def paid(self) -> tuple[Rent, ...]:
        """Return one provider's rents on the term that is paid; one without a term is on any."""
        rents = self.on_term(self.term) or self.on_term("")
        provider = self.provider or (rents[0].provider if rents else "")
        return tuple(rent for rent in rents if rent.provider == provider)

    def on_term(self, term: str) -> tuple[Rent, ...]:
        return tuple(rent for rent in self.offered if rent.term == term)


def smallest(rents: tuple[Rent, ...], num_gpus: int) -> Rent | None:
    """Return the rent of the smallest instance that holds so many GPUs, of equals the cheapest."""
    holding = [rent for rent in rents if rent.holds(num_gpus)]
    return min(holding, key=lambda rent: (rent.num_gpus or 0, rent.usd_per_hour), default=None)
