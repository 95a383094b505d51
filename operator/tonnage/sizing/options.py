"""What a user has of an engine: flags that move its cache, LoRA adapters, speculative decoding."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Final, Literal

from tonnage.catalog.engine import CacheRules
from tonnage.catalog.engine_limits import adapter_kinds
from tonnage.catalog.shape import DenseFfn, GroupedAttention, ModelShape
from tonnage.sizing.errors import InvalidAdaptersError
from tonnage.units import engine_integer

PREFIX_STATE_BLOCKS = 2
"""Of a sequence: the state that is written, and the last that a prefix can be taken up from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSwitches:
    """What the user switches on or off. None: as the version does by itself."""

    prefix_caching: bool | None = None
    """Switched on before 0.28, Mamba-2 keeps a state per block of a sequence: that is not covered,
    it is counted like other states."""
    async_scheduling: bool | None = None
    is_eager: bool = False
    """No CUDA graphs are captured."""
    wide_cache: tuple[str, ...] = ()
    """Layers whose cache stays in 16 bits: by index, or ``sliding_window``."""
    block_tokens: int | None = None
    """Of a block of the cache, before layers with a state need a longer one."""
    graph_mode: str | None = None
    """What CUDA graphs are of, ``cudagraph_mode``."""

    @property
    def captures_decode(self) -> bool:
        """Full CUDA graphs are captured, of whole decode steps: so do versions by themselves."""
        return not self.is_eager and (self.graph_mode or "FULL").startswith("FULL")

    def rules(self, rules: CacheRules) -> CacheRules:
        """Return how a version with these rules cuts the cache under these switches.

        Sources:
            [vllm-source] config/vllm.py max_concurrent_batches; model_executor/models/config.py
            MambaModelConfig: without prefix caching a state has one block and no alignment.
        """
        if self.async_scheduling is not None:
            rules = replace(rules, schedules_async=self.async_scheduling)
        if self.prefix_caching:
            return replace(rules, state_blocks=max(rules.state_blocks, PREFIX_STATE_BLOCKS))
        if self.prefix_caching is False:
            return replace(rules, state_blocks=1, checkpointed_states=(), delta_net_alignment=1)
        return rules


DEFAULT_SWITCHES = EngineSwitches()
_MEANINGS: Mapping[str, Any] = {
    "--enable-prefix-caching": {"prefix_caching": True},
    "--no-enable-prefix-caching": {"prefix_caching": False},
    "--async-scheduling": {"async_scheduling": True},
    "--no-async-scheduling": {"async_scheduling": False},
    "--enforce-eager": {"is_eager": True},
    "--no-enforce-eager": {"is_eager": False},
}


BLOCK_FLAG: Final = "--block-size"
WIDE_CACHE_FLAG: Final = "--kv-cache-dtype-skip-layers"
BLOCK_TOKENS: Final = re.compile(r"[1-9][0-9]{0,8}")
_LEVELS = {"0": "NONE", "1": "PIECEWISE", "2": "FULL_AND_PIECEWISE", "3": "FULL_AND_PIECEWISE"}
"""``cudagraph_mode`` by what follows ``-O``."""
_MODE = re.compile(r"""cudagraph_mode["'\s]*[:=][\s"']*(?:CUDAGraphMode\.)?(\w+)""", re.IGNORECASE)
_LEVEL = re.compile(r"(?:^|\s)(?:-O|--optimization-level)[= ]?([0-3])\b")


def switches_in(arguments: Iterable[str]) -> EngineSwitches:
    """Return what these arguments switch; the last of several wins, as in the engine.

    Sources:
        [vllm-source] config/vllm.py OPTIMIZATION_LEVEL_00 to _03; utils/argparse_utils.py.

    >>> switches_in(["--seed=1", "--enforce-eager"]).is_eager
    True
    >>> switches_in(["-cc", '{"cudagraph_mode": "PIECEWISE"}']).captures_decode
    False
    """
    given, switches, is_list = list(arguments), DEFAULT_SWITCHES, False
    wide: list[str] = []
    for argument, following in zip_longest(given, given[1:], fillvalue=""):
        flag, equals, value = argument.partition("=")
        flag = flag.replace("_", "-")
        size = value if equals else following
        if flag == BLOCK_FLAG and BLOCK_TOKENS.fullmatch(size):
            switches = replace(switches, block_tokens=int(size))
        if is_list and not argument.startswith("-"):
            wide.append(argument)
            continue
        is_list = flag == WIDE_CACHE_FLAG
        if is_list:
            wide = [value] if value else []
        switches = replace(switches, **_MEANINGS.get(flag, {}))
    return replace(switches, wide_cache=tuple(wide), graph_mode=_graph_mode(" ".join(given)))


def _graph_mode(arguments: str) -> str | None:
    """Return the mode that arguments name; what names it goes before a level that means it."""
    modes = [found[1].upper() for found in _MODE.finditer(arguments)]
    modes = modes or [_LEVELS[found[1]] for found in _LEVEL.finditer(arguments)]
    return modes[-1] if modes else None


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


Method = Literal["mtp", "ngram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How many draft tokens each step verifies, and how many of them are accepted."""

    method: Method
    """mtp: draft layers of the checkpoint; ngram: a search in the text so far."""
    num_draft_tokens: int
    """For each sequence in each step."""
    acceptance_rate: float
    """Chance that a draft token is accepted when all before it were."""

    @property
    def tokens_per_step(self) -> float:
        """Return the tokens that a sequence gets from a step in the mean.

        The draft tokens up to the first that is rejected, and one of the model itself::

            1 + a + a^2 + ... + a^k = (1 - a^(k + 1)) / (1 - a)

        What an engine counts as accepted over drafted is ``(tokens_per_step - 1) / k``.

        Sources:
            [leviathan2022] equation 1.

        >>> three = Speculation(method="mtp", num_draft_tokens=3, acceptance_rate=0.8)
        >>> round(three.tokens_per_step, 3)
        2.952
        """
        return sum(self.acceptance_rate**position for position in range(self.num_draft_tokens + 1))

    def steps(self, tokens: float) -> float:
        """Return the steps that so many tokens take in the mean; the last gives more than is asked.

        A renewal process overshoots by ``(E[g^2] / E[g] - 1) / 2`` tokens of ``g`` a step.
        """
        rate, drafted = self.acceptance_rate, self.num_draft_tokens
        second_moment = sum((2 * at + 1) * rate**at for at in range(drafted + 1))
        beyond = (second_moment / self.tokens_per_step - 1) / 2
        return max(1.0, (tokens + beyond) / self.tokens_per_step)

    @property
    def tokens_verified(self) -> int:
        """Of each sequence in a step: the draft tokens, and the one behind the last of them."""
        return 1 + self.num_draft_tokens

    def __str__(self) -> str:
        return (
            f"{self.method}, {self.num_draft_tokens} drafted, {self.acceptance_rate:.0%} accepted: "
            f"{self.tokens_per_step:.2f} tokens per step"
        )
