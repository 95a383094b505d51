"""What is read of a config.json, beside what a release of vLLM built from it."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tonnage.catalog.config.read import shape_from_config
from tonnage.catalog.gpu import CatalogError
from tonnage.catalog.parameters import num_parameters
from tonnage.catalog.shape import USUAL_TIMES, CompressedAttention, GroupedAttention, ModelShape
from tonnage.sizing.parallelism.kv import kv_bytes_per_layer, state_bytes

SAME: Final = 0.001
"""Of a figure: what a padded row or a position more may make."""
PROMPT_TOKENS: Final = 32_768
"""The length at which caches of different kinds are added up."""
FULL: Final = frozenset({"FullAttentionSpec", "MLAAttentionSpec"})
WINDOWS: Final = frozenset({"SlidingWindowSpec", "ChunkedLocalAttentionSpec"})
STATES: Final = frozenset({"MambaSpec"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Parameters, and what one request of ``PROMPT_TOKENS`` keeps, in bytes."""

    parameters: int
    cache_bytes: float
    is_whole: bool = True
    """Of the cache: no part of it is of a kind that is not added up here."""
    assumed: tuple[str, ...] = field(default=())


def built(answer: Mapping[str, Any], longest: int) -> Figures:
    """Return what the release built."""
    total, is_whole = 0.0, True
    for kind in answer["caches"]:
        each = kind["bytes"] * kind["layers"]
        tokens = min(longest, kind.get("tokens") or longest)
        if kind["kind"] in STATES:
            total += each
        elif kind["kind"] in FULL | WINDOWS:
            total += each / kind["block"] * tokens
        else:
            is_whole = False
    return Figures(parameters=answer["parameters"], cache_bytes=total, is_whole=is_whole)


def read(name: str, config: Mapping[str, Any]) -> tuple[Figures, int]:
    """Return what is read of the same configuration, and the length of the request.

    Raises:
        CatalogError: it is refused.
    """
    shape = shape_from_config(config, name=name)
    longest = min(PROMPT_TOKENS, shape.max_position_tokens or PROMPT_TOKENS)
    figures = Figures(
        parameters=num_parameters(shape),
        cache_bytes=_cache_bytes(shape, longest),
        is_whole=not shape.has_kind(CompressedAttention),
        assumed=tuple(each.taken for each in shape.assumptions),
    )
    return figures, longest


def _cache_bytes(shape: ModelShape, longest: int) -> float:
    total = 0.0
    for num_layers, attention in shape.attentions():
        tokens = longest
        if isinstance(attention, GroupedAttention) and attention.window_tokens:
            tokens = min(tokens, attention.window_tokens)
        each = kv_bytes_per_layer(attention)
        total += num_layers * (each * tokens + state_bytes(attention))
    return total


def verdict(name: str, answer: Mapping[str, Any]) -> tuple[str, str]:
    """Return what came of an architecture, and the words of it."""
    if "not built" in answer:
        return "not built", answer["not built"].splitlines()[0][:160]
    try:
        here, longest = read(name, answer["config"])
    except CatalogError as error:
        return "refused", str(error).removeprefix(f"model {name}: ")[:160]
    there = built(answer, longest)
    parts = [("parameters", here.parameters / there.parameters)]
    if here.is_whole and there.is_whole:
        parts.append(("cache", here.cache_bytes / there.cache_bytes if there.cache_bytes else 1.0))
    words = ", ".join(f"{what} x {factor:.3f}" for what, factor in parts)
    if all(abs(factor - 1) <= SAME for _, factor in parts):
        return ("assumed" if here.assumed else "equal"), words if here.assumed else ""
    if here.assumed:
        is_bound = all(factor >= 1 - SAME for _, factor in parts)
        return ("assumed" if is_bound else "assumed too low"), words
    return "differs", words


def unheard_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer whose configuration is of a kind that nobody has heard of."""
    config = dict(answer["config"])
    for key in ("text_config", None):
        block = config.get(key) if key else config
        if isinstance(block, dict) and "model_type" in block:
            renamed = {**block, "model_type": "unheard_of", "architectures": None}
            config = {**config, key: renamed} if key else renamed
    return {**answer, "config": config}


def bounds(answers: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return what each architecture would be if no rule knew its kind."""
    return {
        name: verdict(name, unheard_of(said))
        for name, said in answers["architectures"].items()
        if "not built" not in said
    }


def factors(words: str) -> list[float]:
    return [float(each) for each in re.findall(r"x ([\d.]+)", words)]


def verdicts(answers: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    return {name: verdict(name, said) for name, said in answers["architectures"].items()}


HEAD: Final = """# What models are, as vLLM {release} builds them and as they are read here

Written by `python tests/proof/oracle.py`; do not edit. The release's own classes build every
architecture that it writes text with, from a config.json of `oracle.json`, on tensors without
content: stand-ins are those of `README.md`, kernels of FlashInfer, DeepGEMM and CUTLASS by name,
and the GPU an H100. Where transformers has a class of the kind, the config.json is what that says
without arguments; else it is of `oracle_configs.py`. A default test compares again.

- **equal**: as many parameters, and as many bytes of cache for a request of 32,768 tokens, or
  the longest that the file allows, to 0.1 %.
- **assumed**: no rule knows the kind, and what is counted is no less; with its factor.
- **differs**: a rule knows the kind, and counts something else: where a wrapper ties the head to
  the embedding and its text part does not, both are counted, and the checkpoint decides.
- **refused**: by Tonnage, with its words.
- **not built**: the release did not build it here, with its words.

"""


def page(answers: Mapping[str, Any]) -> str:
    head = HEAD.format(release=answers["release"]).rstrip()
    lines = [*_lines(verdicts(answers)), *_older_lines(answers), *_bound_lines(bounds(answers))]
    return "\n".join([head, "", *lines]) + "\n"


def older(answers: Mapping[str, Any], release: str) -> dict[str, tuple[str, str]]:
    """Return what is read of each file beside what an earlier release built of it."""
    newest = answers["architectures"]
    return {
        name: verdict(name, {**said, "config": newest[name]["config"]})
        for name, said in answers["older"][release].items()
    }


def _older_lines(answers: Mapping[str, Any]) -> Iterator[str]:
    for release in answers["older"]:
        found = older(answers, release)
        others = {name: each for name, each in found.items() if each[0] != "equal"}
        yield from ("", f"## The same files, as vLLM {release} builds them", "")
        yield f"{len(found)} architectures were built, {len(found) - len(others)} equal. Others:"
        yield from ("", *(f"- {name}: {kind}: {words}" for name, (kind, words) in others.items()))


def _bound_lines(found: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    bound = {name: words for name, (kind, words) in found.items() if kind.startswith("assumed")}
    wide = {name: words for name, words in bound.items() if max(factors(words)) > USUAL_TIMES}
    low = {name: words for name, words in bound.items() if min(factors(words)) < 1 - SAME}
    yield from ("", "## As if no rule knew the kind", "")
    yield (
        f"Of the {len(found)} that were built {len(bound)} have a bound; the others are refused. "
        f"{len(bound) - len(wide) - len(low)} of the bounds are no less than the truth and at "
        f"most {USUAL_TIMES} times it. Too wide:"
    )
    yield from ("", *(f"- {name}: {words}" for name, words in wide.items()))
    yield from ("", "Too low, each for what its class does beside the keys; a rule knows them:", "")
    yield from (f"- {name}: {words}" for name, words in low.items())


def _lines(found: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    counts = Counter(kind for kind, _ in found.values())
    yield (
        f"{len(found)} architectures: "
        + ", ".join(f"{number} {kind}" for kind, number in counts.most_common())
        + "."
    )
    for kind in counts:
        names = {name: words for name, (each, words) in found.items() if each == kind}
        yield from ("", f"## {kind}", "")
        if kind == "equal":
            yield ", ".join(names) + "."
        else:
            yield from (f"- {name}: {words}" for name, words in names.items())
