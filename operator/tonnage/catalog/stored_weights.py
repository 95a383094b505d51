"""What the files of a checkpoint hold, in the parts that ranks split differently."""

from collections.abc import Iterator
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPart:
    """The tensors of one part of a checkpoint."""

    num_bytes: int = 0
    """As the engine holds them: numbers of 32 and 64 bits in 16."""
    num_tensors: int = 0


_NOTHING = StoredPart()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeights:
    """What the files of a checkpoint hold, by the parts that ranks split differently.

    Of the whole model, scales and zero points with the part that they belong to.
    """

    embedding: StoredPart = _NOTHING
    head: StoredPart = _NOTHING
    tables: StoredPart = _NOTHING
    """Further embedding tables, one row of which a token meets."""
    attention: StoredPart = _NOTHING
    state_attention: StoredPart = _NOTHING
    """Linear attention and state-space layers."""
    dense_ffn: StoredPart = _NOTHING
    experts: StoredPart = _NOTHING
    shared_experts: StoredPart = _NOTHING
    replicated: StoredPart = _NOTHING
    """Norms, routers and other small tensors that every rank holds whole."""
    encoders: StoredPart = _NOTHING
    """Vision and audio encoders and what projects them."""
    draft: StoredPart = _NOTHING
    """Layers for speculative decoding: loaded only when asked for."""
    skipped: StoredPart = _NOTHING
    """What the engine never loads: a speech decoder, tables of rotary angles, a tied head."""
    other: StoredPart = _NOTHING
    """Names that no rule here knows."""
    notes: tuple[str, ...] = ()

    def parts(self) -> Iterator[tuple[str, StoredPart]]:
        """Yield every part by its name."""
        return ((each.name, getattr(self, each.name)) for each in fields(self)[:-1])

    @property
    def loaded_bytes(self) -> int:
        """Of all parts that are loaded for serving without speculative decoding."""
        idle = self.draft.num_bytes + self.skipped.num_bytes
        return sum(part.num_bytes for _, part in self.parts()) - idle
