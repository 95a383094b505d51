"""What the name of a checkpoint on the hub says: its base, and how its weights are stored.

Publishers rename without changing a shape: a tuned model, a later date, weights in another format.
A rule on words finds the base of such a name. It never makes a shape up: a name whose words lead
to no model of the catalogue, or to two of different shapes, stays unknown.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

_SEPARATORS: Final = re.compile(r"[-_ ]+|\.(?!\d)|(?<!\d)\.")
_TUNED: Final = frozenset({"base", "chat", "hf", "instruct", "it", "meta", "thinking"})
"""Words for how a model was trained, or who made it."""
_DATE: Final = re.compile(r"2[3-9](0[1-9]|1[0-2])|(0[1-9]|1[0-2])([0-2]\d|3[01])")
"""Year and month, or month and day."""
_NOISE: Final = frozenset(
    {
        "128g", "asym", "auto", "bf16", "block", "channel", "dynamic", "g128", "gs128", "kv",
        "marlin", "nvidia", "pertensor", "quantized", "round", "static", "sym", "torch",
    }
)  # fmt: skip
"""Words of recipes that do not change how many bytes a weight has."""
_FORMAT_WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("fp8", "float8"), "fp8"),
        **dict.fromkeys(("w8a8", "int8"), "int8"),
        **dict.fromkeys(("4bit", "autoround", "awq", "gptq", "int4", "w4a16", "w4g128"), "int4"),
        **dict.fromkeys(("fp4", "nvfp4"), "nvfp4"),
    }
)
_OTHER_FORMATS: Final = frozenset(
    {"2bit", "3bit", "8bit", "bnb", "eagle", "eagle3", "exl2", "exl3", "gguf", "lora", "mlx",
     "mxfp4", "w8a16"}
)  # fmt: skip
"""Words of formats and files that a name is not enough for."""
REQUANTIZERS: Final = frozenset(
    {
        "amd", "btbtyler09", "casperhansen", "cpatonn", "cyankiwi", "hugging-quants", "inferact",
        "intel", "ista-daslab", "kaitchup", "lmsys", "modelcloud", "neuralmagic", "nvidia",
        "quanttrio", "redhatai", "solidrust", "stelterlab", "thebloke", "unsloth",
    }
)  # fmt: skip
"""Publishers of others' models in other formats, under the names that these have."""
_NO_DECODE: Final = "it generates no tokens, and there is no decode to plan"
_NO_DECODERS: Final = {
    f"embeds or ranks texts: {_NO_DECODE}": "bge|colbert|e5-(?:small|base|large|mistral)"
    "|embed(?:ders?|dings?)|embeddinggemma|gte|minilm|nomic-embed|reranker|sentence-transformers",
    f"is an encoder: {_NO_DECODE}": "(?:al|camem|distil|mobile|modern|neo|sci)?bert"
    "|deberta|roberta",
    "turns speech into text: no formula here covers its encoder": "whisper",
}
"""What other models do than to answer texts with texts, and words for those in names."""
_INT8_TENSOR: Final = {"num_bits": 8, "type": "int", "symmetric": True}
QUANTIZATION: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "fp8": {"quant_method": "fp8"},
        "int8": {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": _INT8_TENSOR,
                    "input_activations": _INT8_TENSOR,
                }
            },
        },
        "int4": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
        "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    }
)
"""How the usual recipe of each format is written in a ``config.json``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameParts:
    """A name, taken apart."""

    base: tuple[str, ...]
    """Family, version and size."""
    is_tuned: bool
    """Words for training or a date stood in it: the longest context may be another."""
    weight_format: str | None
    """A key of ``QUANTIZATION``. None: the name does not say."""


def name_parts(model_id: str) -> NameParts | None:
    """Take the part of an id behind the publisher apart; None: it names what no rule covers.

    >>> name_parts("RedHatAI/Qwen3-8B-Instruct-2507-FP8-dynamic")
    NameParts(base=('qwen3', '8b'), is_tuned=True, weight_format='fp8')
    """
    words = [word for word in _SEPARATORS.split(model_id.rpartition("/")[2].casefold()) if word]
    if _OTHER_FORMATS.intersection(words):
        return None
    formats = {_FORMAT_WORDS[word] for word in words if word in _FORMAT_WORDS}
    if len(formats) > 1:
        return None
    plain = [word for word in words if word not in _FORMAT_WORDS and word not in _NOISE]
    base = tuple(word for word in plain if word not in _TUNED and not _DATE.fullmatch(word))
    return NameParts(
        base=base,
        is_tuned=len(base) < len(plain),
        weight_format=next(iter(formats), None),
    )


def says_format(model_id: str, weight_format: str) -> bool:
    """Tell whether a name has a word for weights in this format.

    >>> says_format("nvidia/Nemotron-3-Nano-30B-A3B-NVFP4", "nvfp4")
    True
    """
    words = _SEPARATORS.split(model_id.rpartition("/")[2].casefold())
    return any(weight_format in {word, _FORMAT_WORDS.get(word)} for word in words)


def no_decoder(model_id: str) -> str | None:
    """Return what a model does by its name, if not answer texts with texts.

    >>> no_decoder("bert-base-uncased")
    'is an encoder: it generates no tokens, and there is no decode to plan'
    >>> no_decoder("Qwen/Qwen3-8B"), no_decoder("someone/embedded-llama")
    (None, None)
    """
    name = model_id.casefold()
    for deed, words in _NO_DECODERS.items():
        if re.search(rf"(?:^|[-_./])(?:{words})(?:[-_./]|$)", name):
            return deed
    return None


def publisher_of(model_id: str) -> str | None:
    """Return who published a model, in lower case; None: the id does not say."""
    publisher, slash, _ = model_id.partition("/")
    return publisher.casefold() if slash else None
