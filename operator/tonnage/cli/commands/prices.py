"""A buyer's own prices over those of the catalogue: single ones, or a whole list from a file."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from tonnage.catalog.gpu import (
    GPU_FOLDER,
    TERMS,
    CatalogError,
    Gpu,
    Price,
    Rent,
    built_in_gpus,
    find_gpu,
    read_gpus,
)
from tonnage.cli.commands.options import option
from tonnage.cli.console import Failure, ManifestError, failing, number_in, read_every
from tonnage.cli.read.manifest import UnreadableError, read_text
from tonnage.cli.read.strict_yaml import read_documents
from tonnage.sizing.cost import least_usd_per_gpu_hour
from tonnage.units import MILLION


def known_gpus(folder: Path | None) -> Mapping[str, Gpu]:
    """Return the built-in classes, and those of a folder over them."""
    with failing(CatalogError):
        return built_in_gpus() if folder is None else read_gpus([GPU_FOLDER, folder])


def named_gpu(name: str, known: Mapping[str, Gpu], *, field: str) -> Gpu:
    """Return the class of a name or alias; ``field``: where it was named, for the message."""
    try:
        return find_gpu(name, known)
    except CatalogError as error:
        raise Failure(str(error).replace("hardware.gpu", field)) from error


USD: Final = "USD"
OF_LIST: Final = ("provider", "region", "date")
"""Keys of a price file, beside ``currency``, that are no class: they hold for all of its prices."""
INSTANCE: Final = ("instance", "gpus")
"""Keys of a class that are no rate."""
DEFAULT_RATE: Final = "onDemand"
"""The rate that is taken where none is chosen and a class has it."""

_RENT: Final = TypeAdapter(Rent)
_Rates = Mapping[str, Rent]
"""The rents of a class by their names in the file; one without a rate has an empty name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceOptions:
    """A buyer's own prices."""

    # fmt: off
    single_prices: tuple[str, ...] = option("--price", multiple=True, metavar="NAME=AMOUNT",
        help="Your price of a GPU class, per GPU and hour; may be repeated.")
    price_file: str | None = option("--prices", metavar="FILE",
        help="Your price list: a line 'NAME: AMOUNT' for each class, or 'NAME: {onDemand: AMOUNT, "
        "spot: AMOUNT, reserved: AMOUNT}' with any of them, per GPU and hour; and 'currency: EUR'. "
        "Classes that are not in it have no price.")
    rate: str | None = option("--rate", metavar="NAME",
        help="Which rate of --prices: onDemand (the default where any class has it), spot, "
        "reserved, reserved1Year, reserved3Years or a name of yours.")
    currency: str | None = option("--currency", metavar="CODE",
        help="Currency of your prices, a label. Default: USD, or as --prices says.")
    cloud: str | None = option("--cloud", metavar="NAME",
        help="Whose listed prices count where you give none: AWS, Azure, Lambda, Nebius or RunPod "
        "Secure. Default: AWS, of classes that it does not rent the first that does.")
    # fmt: on


def with_prices(
    gpus: Mapping[str, Gpu], prices: PriceOptions, *, whole_nodes: bool = False
) -> Mapping[str, Gpu]:
    """Return the classes with a buyer's prices.

    A file is the whole price list: classes that are not in it have no price. Single prices replace
    their own only, unless they are in another currency than the catalogue's.
    """
    listed, currency = _price_list(prices)
    single = list(map(_one, prices.single_prices))
    prices = replace(prices, cloud=_cloud(prices.cloud, gpus))
    named = _by_class(listed, gpus, prices.price_file or "") | _by_class(single, gpus, "--price")
    currency = _currency(prices, currency)
    return {
        name: replace(
            gpu,
            price=replace(
                _price_of(gpu, named.get(name), prices, currency), whole_nodes=whole_nodes
            ),
        )
        for name, gpu in gpus.items()
    }


def _by_class(
    priced: Iterable[tuple[str, Price]], gpus: Mapping[str, Gpu], where: str
) -> dict[str, Price]:
    """Return the prices by the names of the classes, none of which is named twice."""
    found: dict[str, tuple[str, Price]] = {}
    for written, price in priced:
        name = named_gpu(written, gpus, field="price of").name
        if name in found:
            raise ManifestError(f"{where}: {found[name][0]} and {written} are both {name}")
        found[name] = written, price
    return {name: price for name, (_, price) in found.items()}


def _currency(prices: PriceOptions, listed: str | None) -> str | None:
    """Return the currency of a buyer's prices; None: there are none, each class keeps its own."""
    asked = prices.currency
    if asked is not None:
        _check_currency(asked, where="--currency")
        if listed not in {None, asked}:
            raise ManifestError(f"--currency {asked}: {prices.price_file} has currency {listed}")
    return asked or listed or (USD if prices.single_prices or prices.price_file else None)


def _price_of(gpu: Gpu, own: Price | None, prices: PriceOptions, currency: str | None) -> Price:
    if own is not None:
        return replace(own, currency=currency or USD)
    if prices.price_file is not None:
        return Price(missing=f"no price for {gpu.name} in {prices.price_file}")
    if currency not in {None, gpu.price.currency} and least_usd_per_gpu_hour(gpu) is not None:
        return Price(missing=f"the price of {gpu.name} is in {gpu.price.currency}")
    cloud = prices.cloud or ""
    missing = "" if not cloud or cloud in clouds(gpu) else f"no price for {gpu.name} from {cloud}"
    return replace(gpu.price, provider=cloud, missing=missing)


def clouds(gpu: Gpu) -> tuple[str, ...]:
    """Return who rents a class, the one first that is paid where none is asked for."""
    return tuple(dict.fromkeys(rent.provider for rent in gpu.price.offered if rent.provider))


def _cloud(asked: str | None, gpus: Mapping[str, Gpu]) -> str | None:
    """Return the one cloud that a name, or the beginning of one, means; None: none is asked for."""
    known = sorted({each for gpu in gpus.values() for each in clouds(gpu)})
    if asked is None:
        return None
    meant = [each for each in known if each.casefold().startswith(asked.casefold())]
    if len(meant) == 1:
        return meant[0]
    near = meant or get_close_matches(asked.title(), known)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ManifestError(f"--cloud {asked}: {hint}prices are known of {', '.join(known)}")


def _one(text: str) -> tuple[str, Price]:
    name, sign, amount = text.partition("=")
    if not sign:
        raise ManifestError(f"--price {text}: write NAME=AMOUNT, such as H100=2.10")
    rent = Rent(usd_per_hour=_positive(amount, where=f"--price {text}"), term="")
    return name.strip(), Price(rents=(rent,), term="")


def _price_list(prices: PriceOptions) -> tuple[list[tuple[str, Price]], str | None]:
    """Return the prices of the file at the rate that is chosen, and its currency."""
    file = prices.price_file
    if file is None:
        if prices.rate is not None:
            raise ManifestError("--rate chooses among the rates of --prices FILE: give that too")
        return [], None
    content = dict(_content(file))
    currency = content.pop("currency", None)
    if currency is not None:
        _check_currency(str(currency), where=f"{file}: currency")
    common = _common(content, file)
    read = read_every(
        lambda name, value: (name, _rates(value, common, f"{file}: {name}")), content.items()
    )
    rates = dict(read)
    rate = prices.rate or _only_rate(rates, file)
    found = [
        (name, _at_rate(name, each, "" if "" in each and prices.rate is None else rate, file))
        for name, each in rates.items()
    ]
    if all(price.missing for _, price in found):
        asked = f"no class has a rate {prices.rate}" if prices.rate else "no class has a price"
        raise ManifestError(f"{file}: {asked}")
    return found, None if currency is None else str(currency)


def _common(content: dict[str, Any], file: str) -> Rent:
    """Take from the file what holds for all of its prices, as a rent without a price."""
    prices_by_name = {
        name: _text(content.pop(name), f"{file}: {name}") for name in OF_LIST if name in content
    }
    try:
        return _RENT.validate_python({"usd_per_hour": 1, "term": "", **prices_by_name})
    except ValidationError as error:
        raise ManifestError(
            f"{file}: date: {prices_by_name['date'][:40]!r} is no date: expected YYYY-MM"
        ) from error


def _content(file: str) -> Mapping[str, Any]:
    with failing(UnreadableError, where="--prices "):
        documents = read_documents(read_text(file), source=file)
    content = documents[0].content if len(documents) == 1 else None
    if not isinstance(content, Mapping):
        raise ManifestError(f"{file}: no price list: one line for each class, such as H100: 2.10")
    return content


def _rates(value: object, common: Rent, where: str) -> _Rates:
    """Return what a class costs at each of its rates; a plain amount is one without a name."""
    if not isinstance(value, Mapping):
        return {"": replace(common, usd_per_hour=_positive(value, where=where))}
    amounts = {name: each for name, each in value.items() if name not in INSTANCE}
    if not amounts:
        raise ManifestError(f"{where} has no price")
    return {
        name: _rent(value, _positive(each, where=f"{where}.{name}"), name, common, where)
        for name, each in amounts.items()
    }


def _rent(value: Mapping[str, Any], amount: float, name: str, common: Rent, where: str) -> Rent:
    num_gpus = value.get("gpus")
    is_number = isinstance(num_gpus, int) and not isinstance(num_gpus, bool)
    if num_gpus is not None and not (is_number and num_gpus > 0):
        raise ManifestError(f"{where}.gpus: {str(num_gpus)[:40]!r} is no number of GPUs")
    return replace(
        common,
        usd_per_hour=amount * (num_gpus or 1),
        num_gpus=num_gpus,
        instance=_text(value["instance"], f"{where}.instance") if "instance" in value else "",
        term=TERMS.get(name, name),
    )


def _only_rate(classes: Mapping[str, _Rates], file: str) -> str:
    """Return the rate that all classes are compared at where none is chosen."""
    names = dict.fromkeys(name for rates in classes.values() for name in rates if name)
    if DEFAULT_RATE in names or not names:
        return DEFAULT_RATE
    if len(names) > 1:
        raise ManifestError(f"{file} has several rates: choose with --rate {' or '.join(names)}")
    return next(iter(names))


def _at_rate(name: str, rates: _Rates, rate: str, file: str) -> Price:
    """Return the rents of a class, to be paid at a rate; empty: at the price without one."""
    term = TERMS.get(rate, rate)
    if rate not in rates:
        return Price(missing=f"no {term} price for {name} in {file}")
    return Price(rents=tuple(rates.values()), term=term)


def _text(value: object, where: str) -> str:
    if value is None:
        raise ManifestError(f"{where} is empty: write a text, or leave it out")
    if isinstance(value, (bool, Mapping, list)):
        raise ManifestError(f"{where}: {str(value)[:40]!r} is no text")
    return str(value)


def _positive(value: object, *, where: str) -> float:
    amount = number_in(value)
    if not 0 < amount <= MILLION:
        raise ManifestError(f"{where}: {str(value)[:40]!r} is no price per GPU and hour")
    return amount


def _check_currency(text: str, *, where: str) -> None:
    if not (len(text) == len(USD) and text.isascii() and text.isupper()):
        raise ManifestError(f"{where}: {text[:40]!r} is not a currency such as EUR")
