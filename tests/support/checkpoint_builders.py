"""Safetensors files, written by hand as the format's own README describes them."""

import json
import math
import struct
from itertools import accumulate

from tonnage.catalog.safetensors import Checkpoint, Tensor

ELEMENT_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1, "I32": 4}


def num_bytes(dtype, shape):
    return math.prod(shape) * ELEMENT_BYTES[dtype]


def a_header(tensors, *, metadata=None):
    """Return the header for {name: (dtype, shape)}, laid out in this order."""
    ends = list(accumulate(num_bytes(*each) for each in tensors.values()))
    header = {
        name: {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
        for (name, (dtype, shape)), begin, end in zip(
            tensors.items(), [0, *ends], ends, strict=False
        )
    }
    return {"__metadata__": metadata, **header} if metadata else header


def framed(content, *, data_bytes=0):
    """Return a file with this content as its header."""
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text)) + text + bytes(data_bytes)


def a_file(tensors, **more):
    """Return a whole file; its tensors are zeros."""
    data_bytes = sum(num_bytes(*each) for each in tensors.values())
    return framed(a_header(tensors, **more), data_bytes=data_bytes)


def a_checkpoint(tensors):
    return Checkpoint(
        tensors=tuple(
            Tensor(name, dtype, tuple(shape), num_bytes(dtype, shape))
            for name, (dtype, shape) in tensors.items()
        )
    )


def llama_tensors(  # noqa: PLR0913  (one argument per dimension)
    *, num_layers=32, hidden=4096, kv=1024, ffn=14336, vocab=128_256, dtype="BF16"
):
    """Return the tensors of a Llama; the defaults are those of Llama 3.1 8B."""
    tensors = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(num_layers):
        block = f"model.layers.{layer}"
        tensors |= {
            f"{block}.self_attn.q_proj.weight": (hidden, hidden),
            f"{block}.self_attn.k_proj.weight": (kv, hidden),
            f"{block}.self_attn.v_proj.weight": (kv, hidden),
            f"{block}.self_attn.o_proj.weight": (hidden, hidden),
            f"{block}.mlp.gate_proj.weight": (ffn, hidden),
            f"{block}.mlp.up_proj.weight": (ffn, hidden),
            f"{block}.mlp.down_proj.weight": (hidden, ffn),
            f"{block}.input_layernorm.weight": (hidden,),
            f"{block}.post_attention_layernorm.weight": (hidden,),
        }
    tensors |= {"model.norm.weight": (hidden,), "lm_head.weight": (vocab, hidden)}
    return {name: (dtype, shape) for name, shape in tensors.items()}
