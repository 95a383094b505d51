"""Prefixes, conversions and how amounts are written for people. Nothing else knows a prefix."""

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from fractions import Fraction
from typing import Final

KB: Final = 10**3
MB: Final = 10**6
GB: Final = 10**9
KIB: Final = 2**10
MIB: Final = 2**20
GIB: Final = 2**30
TERA: Final = 10**12
PETA: Final = 10**15
THOUSAND: Final = 10**3
MILLION: Final = 10**6
MS_PER_S: Final = 1000
US_PER_S: Final = 10**6
NS_PER_S: Final = 10**9
MINUTE_S: Final = 60
HOUR_S: Final = 3600
DAY_S: Final = 86_400
HOURS_PER_MONTH: Final = 730.5
HOURS_PER_YEAR: Final = 12 * HOURS_PER_MONTH

_DURATION = re.compile(
    r"(?P<amount>[1-9][0-9]{0,6}([.][0-9]{1,3})?|0[.]0{0,2}[1-9][0-9]{0,2})(?P<unit>ms|s|m|h)"
)
_ENGINE_INTEGER = re.compile(r"(?P<amount>[0-9]{1,18}(\.[0-9]{1,18})?)(?P<suffix>[kmgtKMGT])")
_ENGINE_SCALES: Final = {
    "k": KB, "m": MB, "g": GB, "t": TERA, "K": KIB, "M": MIB, "G": GIB, "T": KIB * GIB
}  # fmt: skip
_QUANTITY = re.compile(r"(?P<amount>[0-9]+([.][0-9]+)?)(?P<suffix>m|k|M|G|T|P|Ki|Mi|Gi|Ti|)")
_QUANTITY_SCALES: Final[Mapping[str, Fraction | int]] = {
    "m": Fraction(1, KB), "": 1, "k": KB, "M": MB, "G": GB, "T": TERA, "P": PETA,
    "Ki": KIB, "Mi": MIB, "Gi": GIB, "Ti": KIB * GIB,
}  # fmt: skip
_RATE = re.compile(r"(?P<amount>[0-9]{1,9}([.][0-9]{1,3})?) ?(?P<prefix>[MGT])(?P<unit>B|b)/s")
_BITS_PER_BYTE: Final = 8
_UNIT_S: Final = {"ms": 1 / MS_PER_S, "s": 1, "m": MINUTE_S, "h": HOUR_S}


_LIKE_DURATION: Final = re.compile(r"(?P<amount>[0-9]+(?:[.][0-9]{1,3})?)\s*(?P<unit>[a-z]+)")
_LONG_UNITS: Final = {"ms": "milliseconds msecs", "s": "seconds secs", "m": "minutes mins",
                      "h": "hours hrs"}  # fmt: skip


def tokens(text: str) -> int:
    """Read a number of tokens: as vLLM reads a length, where 4k is 4,000 and 4K 4,096, or as 1e3.

    Raises:
        ValueError: it is no whole number, or none above zero.

    >>> tokens("4000"), tokens("128k"), tokens("1K"), tokens("1e3")
    (4000, 128000, 1024, 1000)
    """
    try:
        is_power = re.fullmatch(r"[0-9]+([.][0-9]+)?e[0-9]{1,2}", text) is not None
        found = float(text) if is_power else engine_integer(text)
    except ValueError:
        found = 0
    if found <= 0 or found != round(found):
        raise ValueError(f"{text!r} is not a number of tokens such as 4000, 4k or 1e3")
    return round(found)


def tokens_hint(value: object) -> str:
    """Ask whether a number of tokens is meant; empty: the value is like none."""
    with suppress(ValueError):
        return f"; did you mean {tokens(value)}?" if isinstance(value, str) else ""
    return ""


def seconds(duration: str) -> float:
    """Read a duration as users write it: a number, with up to 3 decimals, and one of ms, s, m, h.

    Raises:
        ValueError: it has another form; zero and negative durations have no form.

    >>> seconds("50ms"), seconds("2s"), seconds("1.5s")
    (0.05, 2, 1.5)
    """
    match = _DURATION.fullmatch(duration)
    if not match:
        raise ValueError(f"{duration!r} is not a duration like 50ms, 2s, 5m or 1h{hint(duration)}")
    amount = match["amount"]
    return (float(amount) if "." in amount else int(amount)) * _UNIT_S[match["unit"]]


def hint(text: str) -> str:
    """Ask whether a duration with a longer unit is meant; empty: it is like none."""
    meant = _LIKE_DURATION.fullmatch(text.strip().lower())
    unit = meant and next((u for u in _UNIT_S if f" {meant['unit']}" in f" {_LONG_UNITS[u]}"), "")
    found = f"{meant['amount']}{unit}" if meant and unit else text
    return f"; did you mean {found}?" if found != text and _DURATION.fullmatch(found) else ""


def bytes_per_second(text: str) -> float:
    """Read what a link moves: of bytes (B) as engines count, or of bits (b) as networks are sold.

    Raises:
        ValueError: it has another form, or nothing moves.

    >>> bytes_per_second("50GB/s") == bytes_per_second("400Gb/s") == 50e9
    True
    """
    match = _RATE.fullmatch(text)
    amount = float(match["amount"]) if match else 0.0
    if not match or not amount:
        raise ValueError(f"{text!r} is not a rate like 50GB/s or 400Gb/s")
    bits = 1 if match["unit"] == "B" else _BITS_PER_BYTE
    return amount * int(_QUANTITY_SCALES[match["prefix"]]) / bits


def quantity(text: str) -> Fraction:
    """Read an amount as Kubernetes writes it, which is often in another form than it was given.

    Raises:
        ValueError: it has another form.

    >>> quantity("1024Mi") == quantity("1Gi"), quantity("1500m") == quantity("1.5")
    (True, True)
    """
    match = _QUANTITY.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a quantity")
    return Fraction(match["amount"]) * _QUANTITY_SCALES[match["suffix"]]


def engine_integer(text: str) -> int:
    """Read an integer as vLLM does: ``k m g t`` are decimal, ``K M G T`` binary and of whole ones.

    Raises:
        ValueError: it has another form, such as ``10GiB``: the engine does not start with it.

    >>> engine_integer("10737418240"), engine_integer("10G"), engine_integer("1.5g")
    (10737418240, 10737418240, 1500000000)
    """
    match = _ENGINE_INTEGER.fullmatch(text.strip())
    if not match:
        return int(text)
    amount, scale = match["amount"], _ENGINE_SCALES[match["suffix"]]
    return int(float(amount) * scale) if match["suffix"].islower() else int(amount) * scale


def round_up(number: int, multiple: int) -> int:
    """Return the next multiple.

    >>> round_up(2880, 256)
    3072
    """
    return -(-number // multiple) * multiple


def format_bytes(amount_bytes: float) -> str:
    """Write an amount of memory for a person, in binary units.

    >>> format_bytes(327_680)
    '320.0 KiB'
    >>> format_bytes(141 * GB)
    '131.3 GiB'
    """
    for unit, name in ((KIB * GIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(amount_bytes) >= unit:
            return f"{amount_bytes / unit:.1f} {name}"
    return f"{amount_bytes:.0f} B"


def format_si(amount: float, unit: str) -> str:
    """Write an amount with a decimal prefix.

    >>> format_si(4.8e12, "B/s"), format_si(28.4, "tok/s")
    ('4.80 TB/s', '28.4 tok/s')
    """
    for scale, prefix in ((PETA, "P"), (TERA, "T"), (GB, "G"), (MB, "M"), (KB, "k")):
        if abs(amount) >= scale:
            return f"{amount / scale:.2f} {prefix}{unit}"
    return f"{significant(amount)} {unit}"


def format_s(duration_s: float) -> str:
    """Write a duration for a person.

    >>> format_s(0.0237), format_s(1.5), format_s(600), format_s(math.inf), format_s(math.nan)
    ('23.7 ms', '1.50 s', '10.0 min', 'for ever', '-')
    """
    if math.isnan(duration_s):
        return "-"
    if math.isinf(duration_s):
        return "for ever"
    if abs(duration_s) < 1:
        return f"{significant(duration_s * MS_PER_S)} ms"
    if abs(duration_s) < 2 * MINUTE_S:
        return f"{duration_s:.2f} s"
    return f"{duration_s / MINUTE_S:.1f} min"


def nearest(value: float, *, ratio: float, origin: float = 1.0) -> float:
    """Return the figure nearest to a positive one on the geometric grid around ``origin``.

    >>> nearest(4100, ratio=1.1, origin=4000)
    4000
    >>> round(nearest(4300, ratio=1.1, origin=4000))
    4400
    """
    steps = round(math.log(value / origin) / math.log(ratio))
    return origin * ratio**steps if steps else origin


def significant(value: float, digits: int = 3) -> str:
    """Write a number with so many significant digits, never in exponent form.

    >>> significant(1234.5), significant(0.012345), significant(0)
    ('1234', '0.0123', '0')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"


def count_of(number: int | str, noun: str, nouns: str = "") -> str:
    """Write so many of something; ``nouns``: of several, where an s at the end is not all.

    ``number``: a text is a number as it is to be written.

    >>> count_of(1, "pod"), count_of(0, "pod"), count_of(2, "pod waits", "pods wait")
    ('1 pod', '0 pods', '2 pods wait')
    >>> count_of(f"{1.2:.0f}", "request"), count_of(f"{1e6:,.0f}", "request")
    ('1 request', '1,000,000 requests')
    """
    return f"{number} {noun if str(number) == '1' else nouns or noun + 's'}"


def one_line(text: str, most: int) -> str:
    r"""Write words of somebody else in one line of so many characters, without control characters.

    >>> one_line("no\n such\x1b[31m secret", most=15)
    'no such[31m ...'
    """
    line = " ".join("".join(c for c in text if c.isprintable() or c.isspace()).split())
    return line if len(line) <= most else f"{line[: most - 3]}..."
