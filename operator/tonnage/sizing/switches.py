"""Flags of the user's own that change the layout of the cache, or what stands beside it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Final

from tonnage.catalog.engine import CacheRules

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
