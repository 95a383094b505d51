"""Which format each part of a model has, by rules on the names of its modules.

Publishers write these names in four ways: in full, in whole words of it, as globs, and as regular
expressions after ``re:``, which match from the start, or ``search:``, anywhere. What follows
``in:`` is any part of the name. A part counts as the heaviest of its matrices: that can only make
the weights too heavy, never too light. Layers that differ count as their mean.
"""

import math
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import translate
from itertools import chain
from pathlib import Path
from typing import Any, Final

from tonnage.catalog.config.keys.decoder import UnknownArchitectureError
from tonnage.catalog.shape import (
    Attention,
    Ffn,
    MoeFfn,
    StateAttention,
    WeightFormat,
)

Layer = tuple[Attention | None, Ffn | None]
Rule = tuple[Sequence[str], WeightFormat]
"""Names or patterns, and the format of what they match."""

TABLE: Final[Mapping[str, Any]] = tomllib.loads(
    Path(__file__).with_name("formats.toml").read_text()
)
_BLOCKS: Final[Mapping[str, Sequence[str]]] = TABLE["blocks"]
_MATRICES: Final[Mapping[str, Sequence[Sequence[str]]]] = TABLE["matrices"]
"""The ways to name the matrices of a part, each of all of them."""

# Letters, digits, _ - /; escaped dots, digits, any character or a set, and how often; ^ $ |; groups
# of these in groups, at most once each, and what is ahead or not.
_ATOM: Final = (
    r"[\w\-/^$|]|(?:\\[.bdw]|\.|\[\^?(?:[\w.\-]|\\[.dw])+\])(?:[*+]|\{\d{1,2}(?:,\d{0,2})?\})?"
)
_GROUP: Final = rf"\((?:\?[:!=])?(?:{_ATOM})+\)\??"
_SIMPLE_EXPRESSION: Final = re.compile(
    rf"(?:{_ATOM}|\((?:\?[:!=])?(?:{_ATOM}|{_GROUP})+\)\??)*", re.ASCII
)
_MAX_WILDCARDS: Final = 4
"""More would let a short expression run for minutes."""
_MAX_PATTERNS: Final = 900
"""Globs and expressions of all rules; names in full may be many more."""
_MAX_COMPARISONS: Final = 600_000
"""Of names with patterns, for one model: half a second. All objects wait while one is read."""
_PREFIXES_AS_ONE: Final = 16
"""Globs that end with their only wildcard take as long as one that does not."""
_NAMES_OF_LAYER: Final = 200
"""About as many are asked about."""
_MARKS: Final = ("*", "?", "[")
_EXPRESSIONS: Final = ("re:", "search:")
_PART: Final = "in:"
_NUMBER: Final = re.compile(r"(?<![A-Za-z_])\d")
_OF_ALL_LAYERS: Final = re.compile(r"\\[.b]|\.[*+]|(?:\\[dw]|\[0-9\])[*+]")
_OF_SOME_LAYERS: Final = re.compile(rf"{_NUMBER.pattern}|\\[dw]|[.\[]")
# A wildcard with three letters behind it, or the end, has few places to stop at.
_BROAD: Final = re.compile(r"(?:\.|\\[dw]|\])(?:[*+]|\{\d)(?!(?:\\\.)?[A-Za-z_]{3}|\$?$)", re.ASCII)
_TIMES_BY_BROAD: Final = (1, 1, 8, 120, 1500)
"""Times the usual comparison that one takes with so many of these, on names of 45 letters."""
_INNER_GROUP: Final = re.compile(r"\((?:\?[:!=])?([^()]*)\)(\??)")
_WORDS: Final = re.compile(r"(?:[\w\-/]|\\\.)+", re.ASCII)
_MAX_LENGTH: Final = 500


def formats_by_part(
    rules: Sequence[Rule],
    default: WeightFormat,
    layers: Sequence[Layer],
    own_names: Mapping[str, str],
) -> dict[str, WeightFormat]:
    """Return the format of each part that the model has, and of a head that a rule names.

    Of the rules that match a matrix the first holds; ``default`` is the format of what none
    matches. ``own_names`` are module names by part where the family does not use a usual one.

    Raises:
        UnknownArchitectureError: a regular expression is not of a simple kind.
    """
    _refuse_slow([each for patterns, _ in rules for each in patterns])
    matchers = [(_Matcher(patterns), stored) for patterns, stored in rules if patterns]
    tells_layers = any(_tells_layers(each) for patterns, _ in rules for each in patterns)
    _refuse_many(matchers, len(layers) if tells_layers else 1)
    found = {}
    for part, indices in _owners(layers).items():
        asked = indices if tells_layers else indices[:1]
        formats = [_of_layer(part, index, layers, own_names, matchers, default) for index in asked]
        found[part] = _mean(formats)
    heads = (
        stored for matcher, stored in matchers if any(map(matcher.matches, TABLE["names"]["heads"]))
    )
    head = next(heads, None)
    is_narrow = head and head.bytes_per_parameter < head.wide_bytes_per_parameter
    return found | ({"head": head} if head and is_narrow else {})


def _of_layer(  # noqa: PLR0913, PLR0917  (a part of a layer, and what is said of it)
    part: str,
    index: int,
    layers: Sequence[Layer],
    own_names: Mapping[str, str],
    matchers: Sequence[tuple["_Matcher", WeightFormat]],
    default: WeightFormat,
) -> WeightFormat:
    attention, _ = layers[index]
    # Each kind of state layers names its matrices in its own way.
    own_way = attention.kind if isinstance(attention, StateAttention) else "attention"
    ways = _MATRICES[own_way if part == "state_attention" else part]
    own_name = own_names.get(part)
    blocks = [
        f"{prefix.format(layer=index)}{block}"
        for prefix in TABLE["names"]["prefixes"]
        for block in ((own_name,) if own_name else _BLOCKS[part])
    ]
    hits = {}
    for matrix in dict.fromkeys(chain.from_iterable(ways)):
        names = [f"{name}.{matrix}" if matrix else name.removesuffix(".0") for name in blocks]
        for matcher, stored in matchers:
            if any(map(matcher.matches, names)):
                hits[matrix] = stored.of(part)
                break
    is_complete = any(hits.keys() >= set(way) for way in ways)
    formats = [*hits.values(), *([] if is_complete else [default.of(part)])]
    return max(formats, key=lambda stored: stored.bytes_per_parameter)


def _mean(formats: Sequence[WeightFormat]) -> WeightFormat:
    """Return the most common format that is narrow, with the mean bytes of all."""
    if len(set(formats)) == 1:
        return formats[0]
    narrow = [each for each in formats if each.bytes_per_parameter < each.wide_bytes_per_parameter]
    [(common, _)] = Counter(narrow or formats).most_common(1)
    total_bytes = sum(stored.bytes_per_parameter for stored in formats)
    return replace(common, bytes_per_parameter=total_bytes / len(formats))


def _owners(layers: Sequence[Layer]) -> dict[str, list[int]]:
    """Return the layers that have a part, by part."""
    owners: dict[str, list[int]] = {}
    for index, (attention, ffn) in enumerate(layers):
        parts = []
        if attention:
            has_states = isinstance(attention, StateAttention)
            parts.append("state_attention" if has_states else "attention")
        if ffn:
            parts += ["experts", "shared_experts"] if isinstance(ffn, MoeFfn) else ["dense_ffn"]
        for part in parts:
            owners.setdefault(part, []).append(index)
    return owners


def is_pattern(name: str) -> bool:
    """Tell whether it is a glob or an expression."""
    return name.startswith(_EXPRESSIONS) or _is_glob(name)


def _is_glob(pattern: str) -> bool:
    is_other = pattern.startswith((*_EXPRESSIONS, _PART))
    return not is_other and any(mark in pattern for mark in _MARKS)


def _tells_layers(pattern: str) -> bool:
    """Tell whether the pattern may match some layers and not others."""
    if pattern.startswith(_EXPRESSIONS):
        text = _OF_ALL_LAYERS.sub("-", pattern.partition(":")[2])
        return _OF_SOME_LAYERS.search(text) is not None
    is_open = _is_glob(pattern) and ("?" in pattern or "[" in pattern)
    return is_open or _NUMBER.search(pattern) is not None


def _refuse_slow(patterns: Sequence[str]) -> None:
    globs = [each for each in patterns if _is_glob(each)]
    number = len(globs) + sum(each.startswith(_EXPRESSIONS) for each in patterns)
    if number > _MAX_PATTERNS:
        raise UnknownArchitectureError(
            f"modules in {number} patterns are not understood yet: at most {_MAX_PATTERNS} are"
        )
    slow = next((each for each in globs if each.count("*") > _MAX_WILDCARDS), None)
    if slow is not None:
        raise UnknownArchitectureError(
            f"modules by the pattern {slow!r:.100} are not understood yet"
        )


def _refuse_many(matchers: Sequence[tuple["_Matcher", WeightFormat]], num_layers: int) -> None:
    number = num_layers * _NAMES_OF_LAYER * math.fsum(each.num_comparisons for each, _ in matchers)
    if number > _MAX_COMPARISONS:
        raise UnknownArchitectureError(
            f"modules by so many patterns are not understood yet (num_hidden_layers {num_layers}): "
            f"some {number:,.0f} comparisons, and at most {_MAX_COMPARISONS:,} are made"
        )


class _Matcher:
    """The names and patterns of one rule."""

    def __init__(self, patterns: Sequence[str]) -> None:
        written = [each for each in patterns if each.startswith(_EXPRESSIONS)]
        parts = [each for each in patterns if each.startswith(_PART)]
        self._parts = list(dict.fromkeys(each.removeprefix(_PART) for each in parts))
        globs = [each for each in patterns if _is_glob(each)]
        self._names = set(patterns).difference(written, globs, parts)
        self._lengths = {name.count(".") + 1 for name in self._names}
        translated = [translate(text) for glob in globs for text in (glob, f"{glob}.*")]
        self._globs = re.compile("|".join(translated)) if globs else None
        self._expressions = [_expression(each) for each in written]
        prefixes = [each for each in globs if not _is_glob(each.rstrip("*"))]
        slow = len(globs) - len(prefixes) + sum(map(_usual_comparisons, written))
        fast = len(prefixes) + len(self._parts)
        self.num_comparisons = slow + fast / _PREFIXES_AS_ONE + len(self._lengths)

    def matches(self, name: str) -> bool:
        """Tell whether a module of this name is meant, or one that it is in."""
        words = name.split(".")
        block, experts, _ = name.partition(".experts.")
        asked = f"{block}{experts.rstrip('.')}"  # vLLM asks for routed experts as one module
        return (
            any(
                ".".join(words[start : start + length]) in self._names
                for length in self._lengths
                for start in range(len(words) - length + 1)
            )
            or (self._globs is not None and self._globs.match(name) is not None)
            or any(matches(name) for matches in self._expressions)
            or any(part in asked for part in self._parts)
        )


def _expression(written: str) -> Callable[[str], re.Match[str] | None]:
    kind, _, text = written.partition(":")
    try:
        wildcards = sum(map(text.count, "*+{"))
        is_short = len(text) <= _MAX_LENGTH and wildcards <= _MAX_WILDCARDS
        is_simple = is_short and _SIMPLE_EXPRESSION.fullmatch(text)
        compiled = re.compile(text) if is_simple else None
    except re.error:
        compiled = None
    if compiled is None:
        raise UnknownArchitectureError(
            f"modules that are quantized or not by the expression {text!r:.100} are not "
            "understood yet"
        )
    return compiled.search if kind == "search" else compiled.match


def _usual_comparisons(written: str) -> float:
    """Return how many usual comparisons one with this expression takes at most."""
    kind, _, text = written.partition(":")
    broad = len(_BROAD.findall(text)) + (kind == "search")
    times = _TIMES_BY_BROAD[min(broad, _MAX_WILDCARDS)]
    while found := _INNER_GROUP.search(text):
        times *= _num_ways(found[1]) * (2 if found[2] else 1)
        text = f"{text[: found.start()]}<{text[found.end() :]}"
    return float(min(times * _num_ways(text), _MAX_COMPARISONS))


def _num_ways(group: str) -> int:
    """Return how many of the alternatives may match at one place: of words only prefixes."""
    alternatives = group.split("|")
    words = [each for each in alternatives if _WORDS.fullmatch(each)]
    num_prefixes = (sum(word.startswith(each) for each in words) for word in words)
    return len(alternatives) - len(words) + max(num_prefixes, default=0)
