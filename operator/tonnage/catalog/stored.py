"""A model's weights as its files hold them, by part, beside what the shape makes of them.

The names of tensors are read by their parts between dots, so that scales, zero points and packed
weights count to the matrix that they belong to, whatever the method that quantized it calls them.

Sources:
    [vllm-source] config/model.py: float32 models are served in 16 bits; model_executor/models: the
    names that each model maps its checkpoints from, MultiModelKeys for what is an encoder, and
    utils.py: a tied table is loaded once.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tonnage.catalog.parameters import WIDE_BYTES, counted_bytes
from tonnage.catalog.safetensors import Checkpoint, Tensor
from tonnage.catalog.shape import ModelShape, StoredWeights
from tonnage.units import format_bytes


def _by_word(**names: str) -> dict[str, str]:
    """Return the part of each word, of the words of each part."""
    return {word: part for part, words in names.items() for word in words.split()}


_LAYERS: Final = frozenset({"layers", "h", "blocks", "block"})
_NAMED: Final = _by_word(
    skipped="talker token2wav code2wav inv_freq cos_cached sin_cached",
    encoders="visual vision vision_tower vision_model vision_encoder vision_backbone "
    "vision_adapter vision_embedding vision_embedder vision_projection vision_language_adapter "
    "vision_embed_tokens vpm vit_merger vit_downsampler vit_downsampler2 vit_large_projector "
    "sam_model qwen2_model image_newline view_seperator patch_merger patch_merge_mlp "
    "pre_mm_projector_norm merger resampler qformer connector projector linear_proj mlp1 mlp_AR "
    "multi_modal_projector mm_projector mm_whisper_embeddings language_projection audio_tower "
    "audio_model audio_encoder audio_projection audio_language_adapter whisper_encoder "
    "sound_encoder sound_projection embed_vision embed_audio embed_tokens_extend "
    "spatial_projectors layerwise_projectors",
    tables="embed_tokens_per_layer engram ple_embedding",
)
"""At any place of a name; of several the first here counts."""
_OUTSIDE: Final = _by_word(
    embedding="embed_tokens wte word_embeddings tok_embeddings embed_in embeddings embed",
    head="lm_head embed_out output_layer output head",
    replicated="wpe embed_positions per_layer_model_projection altup_projections "
    "altup_unembed_projections",
)
_SHARED: Final = "shared_mlp share_expert shared_expert shared_experts"
_BLOCKS: Final = _by_word(
    attention="self_attn self_attention attn attention cross_attn",
    state_attention="linear_attn mamba short_conv conv mixer",
    dense_ffn="mlp mlps feed_forward ffn block_sparse_moe residual_mlp fc1 fc2",
    experts="moe experts",
    shared_experts=_SHARED,
    replicated="gate router ple altup laurel layer_scalar per_layer_input_gate "
    "per_layer_projection",
)
"""Modules of a layer; the names inside them say more."""
_IN_FFN: Final = _by_word(
    replicated="gate router shared_expert_gate moe_statics router_bias gate_bias expert_bias "
    "correction_bias e_score_correction_bias fc1_latent_proj fc2_latent_proj "
    "routed_expert_down_proj routed_expert_up_proj",
    shared_experts=_SHARED,
    experts="experts input_linear output_linear",
)
_IN_MIXER: Final = _IN_FFN | _by_word(
    attention="q_proj k_proj v_proj qkv_proj o_proj", dense_ffn="up_proj gate_proj down_proj"
)
"""Nemotron-H calls every kind of layer so."""
_NUMBER: Final = re.compile("[0-9]{1,5}")
_NORM: Final = re.compile("norm|(^|_)ln(_|[0-9]|$)")
_STREAM: Final = re.compile("hc_|.*(hyper_connection|_res_proj)")
"""Residual streams beside attention and feed-forward."""
_STATE_MARK: Final = "A_log"


@dataclass(frozen=True, slots=True)
class TensorPart:
    """The place of a tensor: its part, and the layer and module that decide about doubts."""

    part: str
    layer: int | None = None
    module: str = ""


def tensor_parts(names: Iterable[str], *, num_layers: int) -> dict[str, TensorPart]:
    """Return the part of every tensor of a model with so many layers; further ones are drafts.

    Some names say what they are only beside others: an attention module with a decay is linear,
    and a dense block in a layer with experts is what all tokens share.
    """
    found = {name: part_of_name(name, num_layers=num_layers) for name in names}
    states = {tensor.module for name, tensor in found.items() if name.endswith(f".{_STATE_MARK}")}
    sparse = {tensor.layer for tensor in found.values() if tensor.part == "experts"}
    for name, tensor in found.items():
        if tensor.part == "attention" and tensor.module in states:
            found[name] = replace(tensor, part="state_attention")
        elif tensor.part == "dense_ffn" and tensor.layer in sparse:
            found[name] = replace(tensor, part="shared_experts")
    return found


def part_of_name(name: str, *, num_layers: int) -> TensorPart:
    """Return the part that a name alone tells.

    >>> part_of_name("model.layers.3.mlp.experts.7.up_proj.weight_scale_inv", num_layers=61).part
    'experts'
    >>> part_of_name("model.layers.61.self_attn.o_proj.weight", num_layers=61).part
    'draft'
    """
    words = name.split(".")
    if any(word.startswith("mtp") for word in words):
        return TensorPart("draft")
    found = {_NAMED[word] for word in words if word in _NAMED}
    for part in ("skipped", "encoders", "tables"):
        if part in found:
            return TensorPart(part)
    for depth, (above, number) in enumerate(itertools.pairwise(words), start=1):
        if above in _LAYERS and _NUMBER.fullmatch(number):
            layer = int(number)
            is_draft = layer >= num_layers
            return TensorPart("draft", layer) if is_draft else _inside(words, depth, layer)
    return TensorPart("replicated" if _is_small(words) else _first(words, _OUTSIDE) or "other")


def _is_small(words: Iterable[str]) -> bool:
    return any(_NORM.search(word) or _STREAM.match(word) for word in words)


def _inside(words: list[str], depth: int, layer: int) -> TensorPart:
    inner = words[depth + 1 :]
    at = next((at for at, word in enumerate(inner) if word in _BLOCKS), None)
    module = ".".join(words[: depth + 2 + (at or 0)])
    if at is None or _is_small(inner):
        return TensorPart("replicated" if _is_small(inner) else "other", layer, module)
    block, more = _BLOCKS[inner[at]], dict[str, str]()
    if inner[at] == "mixer":
        more = _IN_MIXER
    elif block in {"dense_ffn", "experts"}:
        more = _IN_FFN
    return TensorPart(_first(inner[at + 1 :], more) or block, layer, module)


def _first(words: Iterable[str], known: Mapping[str, str]) -> str | None:
    return next((known[word] for word in words if word in known), None)


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
    num_bytes = Counter[str]()
    for tensor in checkpoint.tensors:
        part = part_of[tensor.name]
        num_bytes[part] += loaded_bytes(tensor, part)
    notes = tuple(_notes(checkpoint, part_of, held_bytes=num_bytes.total()))
    parts: dict[str, Any] = dict(num_bytes)
    return StoredWeights(notes=notes, **parts)


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
        shown = ", ".join(repr(name[:NAME_LENGTH]) for name in unknown[:MAX_NAMES])
        more = f" and {len(unknown) - MAX_NAMES} more" if len(unknown) > MAX_NAMES else ""
        yield f"tensors of no part that is known: {shown}{more}"


def apply_checkpoint(shape: ModelShape, weights: StoredWeights) -> ModelShape:
    """Return the shape with the weights of its files, and notes on how far its own count is off."""
    weights, remarks = _as_tied(weights, shape)
    if shape.encoder_parameters and weights.encoders:
        shape = replace(shape, encoder_parameters=weights.encoders // WIDE_BYTES)
    notes = (*weights.notes, *remarks, *_comparison(weights, counted_bytes(shape)))
    return replace(shape, stored=weights, notes=(*shape.notes, *notes))


def _as_tied(weights: StoredWeights, shape: ModelShape) -> tuple[StoredWeights, tuple[str, ...]]:
    """Leave out a head that the engine does not load, because it is the embedding."""
    head = weights.head
    if not shape.tied_embeddings:
        missing = ("config.json has a head of its own, the files have none",)
        return weights, () if head or not weights.embedding else missing
    if not head:
        return weights, ()
    note = f"the files have a head of {format_bytes(head)} that is tied: not loaded"
    return replace(weights, head=0, skipped=weights.skipped + head), (note,)


def _comparison(weights: StoredWeights, counted: Mapping[str, float]) -> Iterator[str]:
    held, expected = weights.loaded_bytes, sum(counted.values())
    totals = f"{format_bytes(held)} in the files, {format_bytes(expected)} by config.json"
    if abs(held - expected) <= AGREEMENT * expected:
        yield f"weights agree: {totals}"
        return
    parts = "; ".join(
        f"{name} {format_bytes(num_bytes)} and {format_bytes(counted.get(name, 0))}"
        for name, num_bytes in weights.parts()
        if name not in {"draft", "skipped"} and (num_bytes or counted.get(name))
    )
    yield f"weights differ: {totals}: {parts}"
