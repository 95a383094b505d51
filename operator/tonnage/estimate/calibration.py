"""Everything learned, as one value: who may believe what, by namespace and key."""

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from statistics import median
from typing import Final, Literal, NamedTuple

from tonnage.catalog.engine_limits import WIDE, format_of_experts
from tonnage.catalog.engine_speed import repriced
from tonnage.estimate.posterior import MemoryReport, ObjectPosterior, SpeedPosterior
from tonnage.memoize import memoize
from tonnage.sizing.request import Flags, SizingRequest

WRITE_THRESHOLD: Final = 0.02
KEY_LENGTH: Final = 20
DIGESTS: Final = 4096
"""Of keys that are remembered: each object asks for two of them several times in a tick."""
MIN_WINDOWS: Final = 4
"""Rate windows that an entry stands on before it is a witness to other namespaces."""


class Scope(NamedTuple):
    """Whose entry, and about what: a tenant's engines are believed in its own namespace."""

    namespace: str
    key: str
    """Digest: of ``speed_key`` or ``memory_key``."""


@dataclass(frozen=True, kw_only=True)
class Calibrations:
    """Learned constants. Immutable: an update is a new value.

    What is believed of other namespaces is sorted by key once: each object asks for it.
    """

    speed: Mapping[Scope, SpeedPosterior] = field(default_factory=dict)
    memory: Mapping[Scope, MemoryReport] = field(default_factory=dict)
    objects: Mapping[str, ObjectPosterior] = field(default_factory=dict)
    """By UID of the ModelDeployment."""

    def with_speed(self, moved: Mapping[Scope, SpeedPosterior]) -> "Calibrations":
        return replace(self, speed={**self.speed, **moved}) if moved else self

    def with_memory(self, moved: Mapping[Scope, MemoryReport]) -> "Calibrations":
        return replace(self, memory={**self.memory, **moved}) if moved else self

    @cached_property
    def speed_witnesses(self) -> Mapping[str, Sequence[SpeedPosterior]]:
        """By key: of the namespaces whose evidence others may take."""
        found = defaultdict[str, list[SpeedPosterior]](list)
        for scope, posterior in self.speed.items():
            if is_shareable(posterior):
                found[scope.key].append(posterior)
        return dict(found)

    @cached_property
    def middle_speed(self) -> Callable[[str], SpeedPosterior]:
        """From a key to the middle of what its witnesses say."""
        return cache(lambda key: _median(self.speed_witnesses[key]))

    @cached_property
    def memory_witnesses(self) -> Mapping[str, tuple[int, MemoryReport]]:
        """By key: how many namespaces have reported a pool, and the smallest."""
        found = dict[str, tuple[int, MemoryReport]]()
        for scope, report in self.memory.items():
            number, least = found.get(scope.key, (0, report))
            is_less = report.kv_tokens < least.kv_tokens
            found[scope.key] = number + 1, report if is_less else least
        return found


class SharedSources(NamedTuple):
    """On whose evidence a namespace believes in a constant of speed."""

    source: Literal["Prior", "Namespace", "OtherNamespaces"]
    num_others: int
    """Other namespaces that have learned the same key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beliefs:
    """What one namespace makes of everything learned."""

    calibrations: Calibrations
    namespace: str
    min_namespaces: int
    """So many other namespaces must have learned a constant before this one believes it."""

    def own_speed(self, key: str) -> SpeedPosterior | None:
        """Return what this namespace has seen itself, in a window at least."""
        own = self.calibrations.speed.get(Scope(self.namespace, key))
        return own if own is not None and own.num_windows > 0 else None

    def speed(self, key: str) -> SpeedPosterior | None:
        """Return its own entry, else the median of enough others; None: the prior is believed."""
        if self.sources_of(key).source == "OtherNamespaces":
            return self.calibrations.middle_speed(key)
        return self.own_speed(key)

    def sources_of(self, key: str) -> SharedSources:
        """Return whose evidence ``speed`` takes."""
        own = self.calibrations.speed.get(Scope(self.namespace, key))
        is_one = own is not None and is_shareable(own)
        num_others = len(self.calibrations.speed_witnesses.get(key, ())) - is_one
        if self.own_speed(key) is not None:
            return SharedSources("Namespace", num_others)
        if num_others >= self.min_namespaces:
            return SharedSources("OtherNamespaces", num_others)
        return SharedSources("Prior", num_others)

    def own_memory(self, key: str) -> MemoryReport | None:
        """Return what engines of this namespace have reported themselves."""
        return self.calibrations.memory.get(Scope(self.namespace, key))

    def memory(self, key: str) -> MemoryReport | None:
        """Return its own entry, else the smallest pool of enough others; None: the estimate."""
        number, least = self.calibrations.memory_witnesses.get(key, (0, None))
        return self.own_memory(key) or (least if number >= self.min_namespaces else None)


def is_shareable(posterior: SpeedPosterior) -> bool:
    """Tell whether a namespace has enough evidence to share with others."""
    return posterior.num_windows >= MIN_WINDOWS


def _median(posteriors: Sequence[SpeedPosterior]) -> SpeedPosterior:
    """Return the middle of what several namespaces say, with the doubt of the least certain.

    How the constants depend on each other differs from load to load, so only variances are taken
    over. It stands on no more evidence, and is no younger, than the weakest of them.
    """
    overhead, bandwidth, prefill = (
        math.exp(median(map(math.log, column)))
        for column in zip(*(each.constants for each in posteriors), strict=True)
    )
    variances = [
        max(column) for column in zip(*(each.variances for each in posteriors), strict=True)
    ]
    return SpeedPosterior(
        overhead_factor=overhead,
        bandwidth_efficiency=bandwidth,
        prefill_efficiency=prefill,
        covariance=(variances[0], 0.0, 0.0, variances[1], 0.0, variances[2]),
        num_windows=min(each.num_windows for each in posteriors),
        num_steps=min(each.num_steps for each in posteriors),
        learned_at_s=min(each.learned_at_s for each in posteriors),
    )


@memoize
def speed_key(request: SizingRequest, flags: Flags) -> str:
    """Return the key under which speed is learned: model, formats, GPU, split, engine minor.

    And how data-parallel ranks were said to exchange, in which format of their own experts are
    priced, and which kernels have a rate of their own: constants make up for those.
    """
    split, own_format = flags.parallelism, format_of_experts(request.weights)
    has_own = request.shape.has_experts and "experts" in dict(request.weights.own)
    return _digest(
        request.shape.digest or request.shape.name,
        request.weights.name,
        request.kv_format,
        request.gpu.name,
        split.tensor,
        split.pipeline,
        split.data,
        request.engine.minor,
        request.engine_digest,
        *([split.context] if split.context > 1 else []),
        *(["gathered"] if split.data > 1 and request.shape.has_experts else []),
        *([own_format] if has_own and own_format != WIDE else []),
        *repriced(request.gpu, request.weights, request.engine.minor),
    )


@memoize
def memory_key(request: SizingRequest, flags: Flags) -> str:
    """Return the key under which KV tokens are learned: also all flags that share the memory."""
    return _digest(
        speed_key(request, flags),
        flags.max_num_seqs,
        flags.max_num_batched_tokens,
        flags.gpu_memory_utilization,
        request.context_tokens,
        *([f"bytes {flags.kv_cache_bytes}"] if flags.kv_cache_bytes else []),
        *([f"blocks {flags.num_gpu_blocks}"] if flags.num_gpu_blocks else []),
    )


@lru_cache(maxsize=DIGESTS, typed=True)
def _digest(*parts: str | float) -> str:
    return hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()[:KEY_LENGTH]


def is_material(before: float | None, after: float) -> bool:
    """Tell whether a constant moved by more than 2 % since it was last written."""
    return before is None or abs(after - before) > WRITE_THRESHOLD * abs(before)
