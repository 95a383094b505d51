"""Flags of the user's own that change the layout of the cache, or what stands beside it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

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
_MEANINGS = {
    "--enable-prefix-caching": {"prefix_caching": True},
    "--no-enable-prefix-caching": {"prefix_caching": False},
    "--async-scheduling": {"async_scheduling": True},
    "--no-async-scheduling": {"async_scheduling": False},
    "--enforce-eager": {"is_eager": True},
    "--no-enforce-eager": {"is_eager": False},
}


def switches_in(arguments: Iterable[str]) -> EngineSwitches:
    """Return what these arguments switch; the last of several wins, as in the engine.

    >>> switches_in(["--seed=1", "--enforce-eager"]).is_eager
    True
    """
    switches = DEFAULT_SWITCHES
    for argument in arguments:
        flag = argument.partition("=")[0].replace("_", "-")
        switches = replace(switches, **_MEANINGS.get(flag, {}))
    return switches
