"""LoRA adapters: how many an engine has room for, how wide, and of which models that is counted."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tonnage.catalog.engine_limits import adapter_kinds
from tonnage.catalog.shape import DenseFfn, GroupedAttention, ModelShape
from tonnage.sizing.errors import InvalidAdaptersError
from tonnage.units import engine_integer

DEFAULT_NUMBER: Final = 1
DEFAULT_RANK: Final = 16
ADAPTER_FILES: Final = "--lora-modules"
WITHOUT_SLOTS: Final = 'without slots for them vLLM ends its start, "LoRA is not enabled"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """Slots that the engine sets aside on every GPU when it starts."""

    number: int
    rank: int
    """Of the buffers: adapters of a smaller rank take as much."""

    def __str__(self) -> str:
        return f"{self.number} of rank {self.rank}"


def adapters_in(flags: Mapping[str, str]) -> Adapters | None:
    """Return what the flags of an engine say of adapters; None: they are off.

    Raises:
        ValueError: the engine does not read them.

    Sources:
        [vllm-source] config/lora.py: the defaults; entrypoints/openai/models/serving.py
        init_static_loras; v1/worker/lora_model_runner_mixin.py _ensure_lora_enabled.

    >>> str(adapters_in({"--enable-lora": "", "--max-loras": "4"}))
    '4 of rank 16'
    """
    if "--enable-lora" not in flags:
        if ADAPTER_FILES in flags:
            raise ValueError(f"{ADAPTER_FILES} needs --enable-lora: {WITHOUT_SLOTS}")
        return None
    try:
        number, rank = (
            engine_integer(flags.get(name, str(default)))
            for name, default in (
                ("--max-loras", DEFAULT_NUMBER),
                ("--max-lora-rank", DEFAULT_RANK),
            )
        )
    except ValueError as error:
        raise ValueError("--max-loras and --max-lora-rank must be numbers") from error
    if min(number, rank) < 1:
        raise ValueError(f"--max-loras {number} and --max-lora-rank {rank} must be 1 or more")
    return Adapters(number=number, rank=rank)


def are_counted(shape: ModelShape) -> bool:
    """Tell whether it is known what adapters take of this model."""
    try:
        check_adapters(shape)
    except InvalidAdaptersError:
        return False
    return True


def check_adapters(shape: ModelShape) -> None:
    """Refuse adapters where it is not known what they take.

    Raises:
        InvalidAdaptersError: naming the kind of model, or what its layers have.
    """
    known = {*adapter_kinds("split"), *adapter_kinds("fused")}
    if shape.model_type not in known:
        raise InvalidAdaptersError(
            f"model.adapters: what they take is not known for models of the kind "
            f"{shape.model_type}, only for {', '.join(sorted(known))}"
        )
    for group in shape.groups:
        if not isinstance(group.attention, GroupedAttention) or not isinstance(group.ffn, DenseFfn):
            raise InvalidAdaptersError(
                f"model.adapters: {shape.name} has other layers than attention and a dense "
                "feed-forward block, of which it is not known what adapters take"
            )
