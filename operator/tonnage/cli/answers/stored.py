"""A question with the bytes that the files of its model have, where these are known."""

from dataclasses import replace
from typing import Final

from tonnage.catalog.safetensors import Checkpoint
from tonnage.catalog.stored import apply_checkpoint, stored
from tonnage.sizing.question import Input, Question
from tonnage.units import format_bytes

WIDE_FORMATS: Final = frozenset({"bf16", "fp16"})


def as_stored(question: Question, checkpoint: Checkpoint) -> Question:
    """Return the question with the bytes that the files of its model have.

    Where the spec asks for another format, weights are converted as they are loaded, and counted.
    """
    shape, asked = question.shape, question.weights.name
    if asked != shape.weight_format.name and {asked, shape.weight_format.name} != WIDE_FORMATS:
        value = f"counted as {asked}: the files have {shape.weight_format.name}"
        return _with_inputs(question, value)
    weights = stored(checkpoint, num_layers=shape.num_layers)
    held = apply_checkpoint(shape, weights)
    held_bytes = (held.stored or weights).loaded_bytes
    value = f"{format_bytes(held_bytes)} in {len(checkpoint.tensors)} tensors"
    notes = held.notes[len(shape.notes) :]
    return _with_inputs(replace(question, shape=held), f"{value}: safetensors headers", *notes)


def _with_inputs(question: Question, *values: str) -> Question:
    added = tuple(Input(name="checkpoint", value=each, origin="looked up") for each in values)
    return replace(question, inputs=(*question.inputs, *added))
