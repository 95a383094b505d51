"""Types of the KV cache: since which version, for which attention and boards, and their bytes."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from pydantic import TypeAdapter

from tonnage.catalog.engine import parse_version
from tonnage.catalog.gpu import FORBID_EXTRA
from tonnage.catalog.shape import (
    Attention,
    CompressedAttention,
    GroupedAttention,
    LatentAttention,
    ModelShape,
    StateAttention,
)
from tonnage.units import round_up

CACHE_TYPES_FILE = Path(__file__).parent / "engines" / "cache_types.toml"
WINDOWS: Final = "sliding_window"
"""Among skipped layers, those with a window."""
AttentionName = Literal["grouped", "sparse", "window", "latent", "sparse latent", "compressed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheType:
    """What one head of a layer holds of one token."""

    name: str
    key_bits: int
    value_bits: int
    key_bytes: int = 0
    """Beside the elements of a key: its scale, its norm."""
    value_bytes: int = 0
    scale_elements: int | None = None
    """That share a scale of one byte. None: no elements do."""
    alignment: int = 1
    """Bytes to whose multiples key and value together are rounded up."""
    sparse_entry_bytes: int | None = None
    """Of one token of sparse latent attention. None: by its elements."""
    plain_sparse_since: Mapping[str, str] = field(default_factory=dict, hash=False)
    """First version in which that holds no more, by generation of boards."""
    measured_as: str = ""
    """The type as which its attention was measured. Empty: it was not."""
    wide_edge_layers: int = 0
    """First layers, and last, that stay in 16 bits in models without layers with a state."""
    hybrids_since: str = ""
    """First version that takes it beside layers with a state. Empty: all do."""
    least_capability: int = 0
    """Of a board, times ten."""
    families: Mapping[str, tuple[int, ...]] = field(default_factory=dict, hash=False)
    """Major compute capabilities that have kernels, by version. Empty: every board has."""
    has_flashinfer: bool = False
    """Its kernels are those of FlashInfer where FlashAttention has none."""

    @property
    def element_bytes(self) -> float:
        """Of an element alone, the mean of key and value."""
        return (self.key_bits + self.value_bits) / (2 * 8)

    def head_bytes(self, key_dims: int, value_dims: int) -> int:
        """Return the bytes of one token's key and value in one head, scales included.

        >>> CACHE_TYPES["nvfp4"].head_bytes(256, 256)
        288
        """
        key = -(-key_dims * self.key_bits // 8) + self.key_bytes
        value = -(-value_dims * self.value_bits // 8) + self.value_bytes
        if self.scale_elements:
            key += key_dims // self.scale_elements
            value += value_dims // self.scale_elements
        return round_up(key + value, self.alignment)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Name:
    since: str
    type: str
    attention: tuple[AttentionName, ...] = ()


_DATA = tomllib.loads(CACHE_TYPES_FILE.read_text())
_OTHERS: Mapping[str, str] = _DATA["others"]
_NAMES = TypeAdapter(dict[str, _Name], config=FORBID_EXTRA).validate_python(_DATA["names"])
CACHE_TYPES: Final = TypeAdapter(dict[str, CacheType], config=FORBID_EXTRA).validate_python(
    {name: {"name": name, **figures} for name, figures in _DATA["types"].items()}
)
"""By their names in requests, of which ``bf16`` is any type of 16 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCache:
    """How the layers of a model keep their cache."""

    type: CacheType
    skipped: tuple[str, ...] = ()
    """Layers that stay in 16 bits, by index, or ``sliding_window``."""


WIDE_CACHE: Final = StoredCache(type=CACHE_TYPES["bf16"])


def wide_layers(shape: ModelShape, stored: StoredCache) -> list[int]:
    """Return how many layers of each group with attention stay in 16 bits.

    Which indices a group has is not known: those that hold most tokens, and most of each, go first.

    Sources:
        [vllm-source] quantization/turboquant/config.py get_boundary_skip_layers;
        layers/attention/attention.py (kv_cache_dtype_skip_layers).
    """
    attentions = list(shape.attentions())
    wide = [
        layers if WINDOWS in stored.skipped and attention_name(attention) == "window" else 0
        for layers, attention in attentions
    ]
    skipped = {int(each) for each in stored.skipped if each.isdecimal()}
    if not shape.has_kind(StateAttention):
        edge = min(stored.type.wide_edge_layers, shape.num_layers // 2)
        skipped |= {*range(edge), *range(shape.num_layers - edge, shape.num_layers)}
    remaining = sum(each < shape.num_layers for each in skipped)
    for place in sorted(range(len(wide)), key=lambda each: _widest_first(attentions[each][1])):
        layers, attention = attentions[place]
        if isinstance(attention, GroupedAttention | LatentAttention):
            added = min(remaining, layers - wide[place])
            wide[place] += added
            remaining -= added
    return wide


def _widest_first(attention: Attention) -> tuple[bool, float]:
    if isinstance(attention, GroupedAttention):
        width = attention.num_kv_heads * (attention.head_dim + attention.num_value_dims)
        return attention.window_tokens is not None, -width
    return False, 0.0


def attention_name(attention: Attention) -> AttentionName | None:
    """Name the kind of attention whose kernels read a cache; None: it has none."""
    match attention:
        case GroupedAttention(window_tokens=None):
            return "grouped" if attention.chosen_tokens is None else "sparse"
        case GroupedAttention():
            return "window"
        case LatentAttention():
            return "sparse latent" if attention.is_sparse else "latent"
        case CompressedAttention():
            return "compressed"
        case _:
            return None


def names_of(minor: str) -> list[str]:
    """Return what ``--kv-cache-dtype`` takes in a version on the boards of the catalogue."""
    asked = parse_version(minor)
    return ["auto", *(name for name, each in _NAMES.items() if parse_version(each.since) <= asked)]


def name_refusal(name: str, minor: str, shape: ModelShape, skipped: Sequence[str]) -> str | None:
    """Return why a version does not start this model with a type of this name; None: it does.

    ``skipped``: layers that stay in 16 bits. The reason ends with the names that it starts with.
    """
    if name in names_of(minor):
        reason = _model_refusal(name, minor, shape, skipped)
    elif name in _OTHERS:
        reason = f"vLLM has kernels for it on {_OTHERS[name]} only"
    elif name in _NAMES:
        reason = f"vLLM takes it from {_NAMES[name].since} on"
    else:
        reason = "vLLM does not know it"
    if reason is None:
        return None
    others = [each for each in names_of(minor) if not _model_refusal(each, minor, shape, skipped)]
    return f"{reason}; with {shape.name} vLLM {minor} takes {', '.join(others)}"


def _model_refusal(name: str, minor: str, shape: ModelShape, skipped: Sequence[str]) -> str | None:
    if name == "auto":
        return None
    allowed, known = _NAMES[name].attention, CACHE_TYPES[_NAMES[name].type]
    wide = wide_layers(shape, StoredCache(type=known, skipped=tuple(skipped)))
    for stays_wide, (layers, attention) in zip(wide, shape.attentions(), strict=True):
        kind = attention_name(attention)
        if kind and allowed and kind not in allowed and stays_wide < layers:
            return f"vLLM has no kernels for it in {kind} attention, which this model has"
    since = known.hybrids_since
    if since and shape.has_kind(StateAttention) and parse_version(minor) < parse_version(since):
        return f"vLLM takes it from {since} on for a model that has layers with a state"
    return None


def type_of(name: str) -> str:
    """Return the type that a name means: not of ``auto``."""
    return _NAMES[name].type
