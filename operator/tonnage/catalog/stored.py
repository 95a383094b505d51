"""A model's weights as its files hold them, beside what the shape makes of them.

Sources:
    [vllm-source] config/model.py: float32 models are served in 16 bits;
    model_executor/models/utils.py: a tied table is loaded once.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from tonnage.catalog.parameters import WIDE_BYTES, counted_bytes
from tonnage.catalog.safetensors import Checkpoint, Tensor
from tonnage.catalog.shape import ModelShape
from tonnage.catalog.stored_weights import StoredPart, StoredWeights
from tonnage.catalog.tensor_parts import tensor_parts
from tonnage.units import format_bytes

WIDER_TYPES: Final = frozenset({"F32", "F64"})
AGREEMENT: Final = 0.02
"""Names tell parts apart, and counts leave small tensors out: closer than this is the same."""
MAX_NAMES: Final = 5
NAME_LENGTH: Final = 80


def weights_by_part(checkpoint: Checkpoint, *, num_layers: int) -> StoredWeights:
    """Return the tensors of a checkpoint by part, for a model with so many layers.

    Counts bytes as the engine holds them: matrices in 32 or 64 bits are loaded in 16. Norms,
    routers and scales stay as they are.
    """
    found = tensor_parts((tensor.name for tensor in checkpoint.tensors), num_layers=num_layers)
    part_of = {name: tensor.part for name, tensor in found.items()}
    num_bytes, num_tensors = Counter[str](), Counter[str]()
    for tensor in checkpoint.tensors:
        part = part_of[tensor.name]
        num_bytes[part] += loaded_bytes(tensor, part)
        num_tensors[part] += 1
    parts: dict[str, Any] = {
        part: StoredPart(num_bytes=num_bytes[part], num_tensors=number)
        for part, number in num_tensors.items()
    }
    notes = tuple(_notes(checkpoint, part_of, held_bytes=num_bytes.total()))
    return replace(StoredWeights(notes=notes), **parts)


def loaded_bytes(tensor: Tensor, part: str) -> int:
    """Return what one tensor takes once it is loaded."""
    leaf = tensor.name.rpartition(".")[2]
    is_weight = leaf == "weight" or (len(tensor.shape) > 1 and "scale" not in leaf)
    if tensor.dtype in WIDER_TYPES and is_weight and part != "replicated":
        return math.prod(tensor.shape) * WIDE_BYTES
    return tensor.num_bytes


def _notes(checkpoint: Checkpoint, part_of: Mapping[str, str], *, held_bytes: int) -> Iterator[str]:
    yield from checkpoint.notes
    saved_bytes = checkpoint.total_bytes - held_bytes
    if saved_bytes:
        yield (
            "numbers of 32 and 64 bits are loaded in 16: "
            f"{format_bytes(saved_bytes)} less than the files have"
        )
    unknown = sorted(name for name, part in part_of.items() if part == "other")
    if unknown:
        yield f"tensors of no part that is known: {_first_names(unknown)}"


def _first_names(names: Iterable[str]) -> str:
    shown = [repr(name[:NAME_LENGTH]) for name in names]
    more = len(shown) - MAX_NAMES
    return ", ".join(shown[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def apply_checkpoint(shape: ModelShape, weights: StoredWeights) -> ModelShape:
    """Return the shape with the weights of its files, and notes on how far its own count is off."""
    weights, remarks = _as_tied(weights, shape)
    if shape.encoder_parameters and weights.encoders.num_bytes:
        shape = replace(shape, encoder_parameters=weights.encoders.num_bytes // WIDE_BYTES)
    notes = (*weights.notes, *remarks, *_comparison(weights, counted_bytes(shape)))
    return replace(shape, stored=weights, notes=(*shape.notes, *notes))


def _as_tied(weights: StoredWeights, shape: ModelShape) -> tuple[StoredWeights, tuple[str, ...]]:
    """Leave out a head that the engine does not load, because it is the embedding."""
    head = weights.head
    if not shape.tied_embeddings:
        missing = ("config.json has a head of its own, the files have none",)
        return weights, () if head.num_tensors or not weights.embedding.num_tensors else missing
    if not head.num_tensors:
        return weights, ()
    skipped = StoredPart(
        num_bytes=weights.skipped.num_bytes + head.num_bytes,
        num_tensors=weights.skipped.num_tensors + head.num_tensors,
    )
    note = f"the files have a head of {format_bytes(head.num_bytes)} that is tied: not loaded"
    return replace(weights, head=StoredPart(), skipped=skipped), (note,)


def _comparison(weights: StoredWeights, counted: Mapping[str, float]) -> Iterator[str]:
    held, expected = weights.loaded_bytes, sum(counted.values())
    totals = f"{format_bytes(held)} in the files, {format_bytes(expected)} by config.json"
    if abs(held - expected) <= AGREEMENT * expected:
        yield f"weights agree: {totals}"
        return
    parts = "; ".join(
        f"{name} {format_bytes(part.num_bytes)} and {format_bytes(counted.get(name, 0))}"
        for name, part in weights.parts()
        if name not in {"draft", "skipped"} and (part.num_bytes or counted.get(name))
    )
    yield f"weights differ: {totals}: {parts}"
