"""Which parts of a model a list of module names excludes from quantization.

Publishers write these lists in four ways: full names, name parts, globs, and regular expressions
after ``re:``. A part counts as excluded as soon as one of its matrices is: that can only make the
weights too heavy, never too light.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from tonnage.catalog.config.keys.decoder import UnknownArchitectureError
from tonnage.catalog.shape import Attention, DenseFfn, Ffn, MoeFfn, StateAttention

Layer = tuple[Attention | None, Ffn | None]

_PREFIXES: Final = (
    "model.layers.{layer}.",
    "language_model.model.layers.{layer}.",
    "model.language_model.layers.{layer}.",
    "backbone.layers.{layer}.",
)
_BLOCKS: Final[Mapping[str, tuple[str, ...]]] = {
    "attention": ("self_attn",),
    "state_attention": ("linear_attn",),
    "dense_ffn": ("mlp", "feed_forward"),
    "experts": ("mlp.experts.0", "block_sparse_moe.experts.0", "feed_forward.experts"),
    "shared_experts": (
        "mlp.shared_experts", "mlp.shared_expert", "feed_forward.shared_expert",
    ),
}  # fmt: skip
PARTS: Final = frozenset(_BLOCKS)
"""The parts of a model whose formats may differ."""
_FFN: Final = ("gate_proj", "up_proj", "down_proj", "gate_up_proj", "w1", "w2", "w3")
_MATRICES: Final[Mapping[str, tuple[str, ...]]] = {
    "attention": (
        "q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj",
        "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj",
    ),
    # The narrow ones (in_proj_ba, f_a_proj, conv1d) stay wide in most checkpoints: they are a few
    # parameters in a hundred, and must not make the rest count as wide.
    "gated_delta_net": ("in_proj_qkvz", "in_proj_qkv", "in_proj_z", "out_proj"),
    "kimi_delta": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "lightning": ("qkv_proj", "output_gate", "out_proj"),
    "mamba1": ("in_proj", "out_proj"),
    "mamba2": ("in_proj", "out_proj"),
    "short_conv": ("in_proj", "out_proj"),
    "dense_ffn": _FFN,
    "experts": _FFN,
    "shared_experts": _FFN,
}  # fmt: skip
_Matcher = Callable[[str], bool]

# Letters, digits, _ - / and escaped dots; . and .* ; ^ $ ; (a|b) and (?:a|b); [a-z0-9].
_SIMPLE_EXPRESSION: Final = re.compile(
    r"(?:[\w\-/]|\\\.|\.\*?|\^|\$|\((?:\?:)?[\w|]+\)\??|\[[\w\-]+\]\*?)*", re.ASCII
)
_MAX_WILDCARDS: Final = 4
"""More would let a short expression run for minutes."""


def unquantized_parts(
    patterns: Iterable[str], layers: Sequence[Layer], own_names: Mapping[str, str]
) -> set[str]:
    """Return the parts of the model that these patterns exclude.

    The middle one of the layers that have a part stands for all of them. ``own_names`` are
    module names by part where the family does not use one of the usual names.

    Raises:
        UnknownArchitectureError: a regular expression is not of a simple kind.
    """
    matchers = [_matcher(pattern) for pattern in patterns]
    return {
        part
        for part, index in _middle_layers(layers).items()
        if any(
            matches(f"{name}.{matrix}")
            for name in _names(part, index, own_names.get(part))
            for matrix in _MATRICES[_kind(part, layers[index])]
            for matches in matchers
        )
    }


def _middle_layers(layers: Sequence[Layer]) -> dict[str, int]:
    owners: dict[str, list[int]] = {}
    for index, (attention, ffn) in enumerate(layers):
        for part in (*_attention_parts(attention), *_ffn_parts(ffn)):
            owners.setdefault(part, []).append(index)
    return {part: indices[len(indices) // 2] for part, indices in owners.items()}


def _attention_parts(attention: Attention | None) -> tuple[str, ...]:
    match attention:
        case None:
            return ()
        case StateAttention():
            return ("state_attention",)
        case _:
            return ("attention",)


def _ffn_parts(ffn: Ffn | None) -> tuple[str, ...]:
    match ffn:
        case None:
            return ()
        case DenseFfn():
            return ("dense_ffn",)
        case MoeFfn():
            return ("experts", "shared_experts")


def _names(part: str, layer: int, own_name: str | None) -> list[str]:
    return [
        f"{prefix.format(layer=layer)}{block}"
        for prefix in _PREFIXES
        for block in ((own_name,) if own_name else _BLOCKS[part])
    ]


def _kind(part: str, layer: Layer) -> str:
    """Tell state layers apart: each kind names its matrices in its own way."""
    attention, _ = layer
    if part == "state_attention" and isinstance(attention, StateAttention):
        return attention.kind
    return part


def _matcher(pattern: str) -> _Matcher:
    if pattern.startswith("re:"):
        return _expression(pattern.removeprefix("re:"))
    if any(mark in pattern for mark in "*?["):
        return lambda name: fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")
    inner = f".{pattern}."
    return lambda name: inner in f".{name}."


def _expression(text: str) -> _Matcher:
    try:
        is_simple = _SIMPLE_EXPRESSION.fullmatch(text) and text.count("*") <= _MAX_WILDCARDS
        compiled = re.compile(text) if is_simple else None
    except re.error:
        compiled = None
    if compiled is None:
        raise UnknownArchitectureError(
            f"weights excluded from quantization by the expression {text!r:.100} "
            "are not understood yet"
        )
    expression = compiled
    return lambda name: expression.match(name) is not None
