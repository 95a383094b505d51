"""Flags of the user's own that change the layout of the cache, or what stands beside it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
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


WIDE_CACHE_FLAG: Final = "--kv-cache-dtype-skip-layers"


def switches_in(arguments: Iterable[str]) -> EngineSwitches:
    """Return what these arguments switch; the last of several wins, as in the engine.

    >>> switches_in(["--seed=1", "--enforce-eager"]).is_eager
    True
    """
    switches, is_list = DEFAULT_SWITCHES, False
    for argument in arguments:
        flag, _, value = argument.partition("=")
        flag = flag.replace("_", "-")
        if is_list and not argument.startswith("-"):
            switches = replace(switches, wide_cache=(*switches.wide_cache, argument))
            continue
        is_list = flag == WIDE_CACHE_FLAG
        if is_list:
            switches = replace(switches, wide_cache=(value,) if value else ())
        if flag in _MEANINGS:
            switches = replace(switches, **_MEANINGS[flag])
    return switches
