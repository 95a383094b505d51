"""A buyer's own prices over those of the catalogue: single ones, or a whole list from a file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tonnage.catalog.gpu import CatalogError, Gpu, Price, find_gpu
from tonnage.cli.console import Failure
from tonnage.cli.read.manifest import read_text
from tonnage.cli.read.strict_yaml import ManifestError, read_documents
from tonnage.units import MILLION

CURRENCY: Final = "currency"
"""The one key of a price file that is no class."""
USD: Final = "USD"
YOURS: Final = "(yours)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a buyer says of prices, as it was written."""

    single: tuple[str, ...] = ()
    """NAME=AMOUNT each."""
    file: str | None = None
    rate: str | None = None
    """Which of several rates of a class in the file."""
    currency: str | None = None


def priced(gpus: Mapping[str, Gpu], prices: Prices) -> Mapping[str, Gpu]:
    """Return the classes with a buyer's prices.

    A file is the whole price list: classes that are not in it have no price. Single prices replace
    their own only, unless they are in another currency than the catalogue's.

    Raises:
        Failure: a class is unknown, or an amount is none.
    """
    try:
        listed, currency = _listed(prices)
        single = dict(_single(each) for each in prices.single)
        named = [(find_gpu(name, gpus).name, each) for name, each in (*listed, *single.items())]
        found = {name: each for name, each in named if each is not None}
        if prices.currency is not None:
            _check_currency(prices.currency, where="--currency")
    except (CatalogError, ManifestError) as error:
        raise Failure(str(error).replace("hardware.gpu", "price of")) from error
    currency = prices.currency or currency or USD
    keeps_others = prices.file is None and currency == USD
    return {
        name: _with_price(gpu, found.get(name), currency, keeps_others=keeps_others)
        for name, gpu in gpus.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Amount:
    per_hour: float
    rate: str = ""


def _with_price(gpu: Gpu, found: _Amount | None, currency: str, *, keeps_others: bool) -> Gpu:
    if found is None:
        return gpu if keeps_others else replace(gpu, price=Price())
    rate = " ".join(filter(None, (found.rate, YOURS)))
    price = Price(rent_usd_per_hour=found.per_hour, currency=currency, rate=rate)
    return replace(gpu, price=price)


def _single(text: str) -> tuple[str, _Amount]:
    name, sign, amount = text.partition("=")
    if not sign:
        raise ManifestError(f"--price {text}: write NAME=AMOUNT, such as H100=2.10")
    return name.strip(), _Amount(per_hour=_positive(amount, where=f"--price {text}"))


def _listed(prices: Prices) -> tuple[list[tuple[str, _Amount | None]], str | None]:
    """Return the prices of the file, None where a class has no such rate, and its currency."""
    if prices.file is None:
        if prices.rate is not None:
            raise ManifestError("--rate chooses among the rates of --prices FILE: give that too")
        return [], None
    content, currency = dict(_content(prices.file)), None
    if CURRENCY in content:
        currency = str(content.pop(CURRENCY))
        _check_currency(currency, where=f"{prices.file}: {CURRENCY}")
    found = [
        (name, _amount(value, prices.rate, where=f"{prices.file}: {name}"))
        for name, value in content.items()
    ]
    if all(each is None for _, each in found):
        asked = f"no class has a rate {prices.rate}" if prices.rate else "no class has a price"
        raise ManifestError(f"{prices.file}: {asked}")
    return found, currency


def _content(file: str) -> Mapping[str, Any]:
    try:
        documents = read_documents(read_text(file), source=file)
    except OSError as error:
        raise Failure(f"--prices {file}: {error.strerror}") from error
    content = documents[0].content if len(documents) == 1 else None
    if not isinstance(content, Mapping):
        raise ManifestError(f"{file}: no price list: one line for each class, such as H100: 2.10")
    return content


def _amount(value: object, rate: str | None, *, where: str) -> _Amount | None:
    """Return the amount of a class at the rate asked for; None: it has no such rate."""
    if not isinstance(value, Mapping):
        return _Amount(per_hour=_positive(value, where=where)) if rate is None else None
    if rate is not None:
        found = value.get(rate)
        if found is None:
            return None
        return _Amount(per_hour=_positive(found, where=f"{where}.{rate}"), rate=rate)
    if not value:
        raise ManifestError(f"{where} has no price")
    if len(value) != 1:
        raise ManifestError(f"{where} has several rates: choose with --rate {' or '.join(value)}")
    [(only, amount)] = value.items()
    return _Amount(per_hour=_positive(amount, where=f"{where}.{only}"), rate=only)


def _positive(value: object, *, where: str) -> float:
    try:
        amount = float(str(value))
    except ValueError:
        amount = math.nan
    if not 0 < amount <= MILLION:
        raise ManifestError(f"{where}: {str(value)[:40]!r} is no price per GPU and hour")
    return amount


def _check_currency(text: str, *, where: str) -> None:
    if not (len(text) == len(USD) and text.isascii() and text.isupper()):
        raise ManifestError(f"{where}: {text[:40]!r} is no currency such as EUR")
