"""A request with the bytes that the files of its model have, where these are known."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tonnage.catalog.config.formats.quantization import WEIGHT_FORMATS
from tonnage.catalog.safetensors import Checkpoint
from tonnage.catalog.stored import apply_checkpoint, weights_by_part
from tonnage.sizing.provenance import Figure, Input, Origin
from tonnage.sizing.request import SizingRequest, with_prior
from tonnage.units import format_bytes

CONTEXT_STEP_TOKENS: Final = 512
ROOM: Final = 1.5
"""What a shorter context leaves over the mean request."""
WIDE_FORMATS: Final = frozenset({"bf16", "fp16"})


def as_stored(request: SizingRequest, checkpoint: Checkpoint) -> SizingRequest:
    """Return the request with the bytes that the files of its model have.

    Where the spec asks for another format, weights are converted as they are loaded, and counted.
    """
    shape, asked = request.shape, request.weights.name
    if asked != shape.weight_format.name and {asked, shape.weight_format.name} != WIDE_FORMATS:
        value = f"counted as {asked}: the files have {shape.weight_format.name}"
        return _with_inputs(request, value)
    weights = weights_by_part(checkpoint, num_layers=shape.num_layers)
    held = apply_checkpoint(shape, weights)
    held_bytes = (held.stored or weights).loaded_bytes
    value = f"{format_bytes(held_bytes)} in {len(checkpoint.tensors)} tensors"
    notes = held.notes[len(shape.notes) :]
    return _with_inputs(replace(request, shape=held), f"{value}: safetensors headers", *notes)


def narrowed(request: SizingRequest) -> Iterator[tuple[str, SizingRequest]]:
    """Yield changes to a spec with which less memory is taken, in its own words."""
    if request.weights.name in WIDE_FORMATS:
        counted = replace(request.shape, stored=None)
        narrow = replace(request, weights=WEIGHT_FORMATS["fp8"], shape=counted)
        yield "model.weights: fp8", with_prior(narrow)
    if request.kv_format == "bf16":
        yield "model.kvCache: fp8", replace(request, kv_format="fp8")
    workload = request.workload
    longest = max(
        ROOM * (workload.prompt.mean_tokens + workload.output_tokens),
        workload.prompt.quantile(0.99) + workload.output_p99_tokens,
    )
    tokens = math.ceil(longest / CONTEXT_STEP_TOKENS) * CONTEXT_STEP_TOKENS
    if tokens < request.context_tokens:
        yield f"contextLength: {tokens}", replace(request, context_tokens=tokens)


def _with_inputs(request: SizingRequest, *values: str) -> SizingRequest:
    added = (
        Input(figure=Figure.CHECKPOINT, value=each, origin=Origin.LOOKED_UP) for each in values
    )
    return replace(request, inputs=(*request.inputs, *added))
