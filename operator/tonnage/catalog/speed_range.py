"""How far a predicted speed may be off: further where nothing like it was measured.

The fit of a step holds for models, formats and boards that its measurements had none of, and less
so for kinds of them. What eight of ten measured steps keep was found with each model left out of
the fit; every kind that no row shows widens that, as independent errors add::

    log(1 + spread) = sqrt(sum of log(1 + part) ** 2)
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from tonnage.catalog.engine_limits import dense_kernels, format_of_experts, kernel_table, scaling_of
from tonnage.catalog.engine_speed import SpeedTable, memory_class, speed_table
from tonnage.catalog.gpu import Gpu
from tonnage.catalog.shape import Attention, GroupedAttention, ModelShape, WeightFormat
from tonnage.units import count_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasured:
    """Something that a model, its weights or its board have and no measured row had."""

    kind: str
    """A key of ``SpeedTable.unmeasured_fraction``."""
    words: str


@lru_cache(maxsize=256)
def speed_spread(gpu: Gpu, weights: WeightFormat, shape: ModelShape, stages: int = 1) -> float:
    """Return by which fraction a predicted step may be off, either way, eight times in ten."""
    return _spread("step", unmeasured_parts(gpu, weights, shape, stages))


def first_token_spread(
    gpu: Gpu, weights: WeightFormat, shape: ModelShape, stages: int = 1, *, minor: str = ""
) -> float:
    """Return the same for a time to first token, in a version of the engine."""
    alike = unmeasured_parts(gpu, weights, shape, stages)
    return _spread("first_token", (*alike, *unmeasured_prompts(gpu, weights, shape, minor)))


def _spread(what: str, found: Iterable[Unmeasured]) -> float:
    table = speed_table()
    parts = [table.unmeasured_fraction[each.kind] for each in found]
    return together(table.spread_fraction[what], *parts)


def together(*fractions: float) -> float:
    """Return the fraction by which several independent errors are off together.

    >>> round(together(0.15, 0.2), 3)
    0.258
    """
    return math.expm1(math.hypot(*(math.log1p(each) for each in fractions)))


def unmeasured_parts(
    gpu: Gpu, weights: WeightFormat, shape: ModelShape, stages: int = 1
) -> tuple[Unmeasured, ...]:
    """Return all that no measured row had; ``stages``: of the pipeline."""
    table = speed_table()
    of_model = (*_of_weights(table, gpu, weights, shape), *_of_model(shape))
    found = (*_of_board(table, gpu), *of_model)
    if stages == 1:
        return found
    return (*found, Unmeasured(kind="pipeline", words=f"a pipeline of {count_of(stages, 'stage')}"))


def unmeasured_prompts(
    gpu: Gpu, weights: WeightFormat, shape: ModelShape, minor: str = ""
) -> tuple[Unmeasured, ...]:
    """Return what no measurement, of a kernel either, had of prompts alone.

    Sources:
        [kernel-tables] have no plain products of kernels that unpack weights, of vLLM.
    """
    kernels = dense_kernels(gpu, weights, shape, minor)
    if not kernels:
        return ()
    words = f"prompts through {kernel_table().names[kernels]}, which unpacks {scaling_of(weights)}"
    return (Unmeasured(kind="kernels", words=words),)


def _of_board(table: SpeedTable, gpu: Gpu) -> Iterator[Unmeasured]:
    if gpu.generation not in table.measured:
        has_kernels = gpu.generation in table.bandwidth_efficiency
        kind = "generation" if has_kernels else "kernels"
        yield Unmeasured(kind=kind, words=f"serving on {gpu.generation or 'this'} GPUs")
    elif memory_class(table.bandwidth_efficiency, gpu) != gpu.generation:
        words = f"{gpu.memory_kind} memory of {gpu.generation} GPUs"
        yield Unmeasured(kind="generation", words=words)


def _of_weights(
    table: SpeedTable, gpu: Gpu, weights: WeightFormat, shape: ModelShape
) -> Iterator[Unmeasured]:
    anywhere = tuple(chain.from_iterable(table.measured.values()))
    known = table.measured.get(gpu.generation, anywhere)
    names = [scaling_of(weights)]
    if shape.has_experts:
        names.append(format_of_experts(weights))
    missing = [name for name in dict.fromkeys(names) if name not in known]
    if missing:
        yield Unmeasured(kind="format", words=f"weights in {' and '.join(missing)}")


def _of_model(shape: ModelShape) -> Iterator[Unmeasured]:
    table = speed_table()
    kinds = {_kind(each) for _, each in shape.attentions()}
    missing = sorted(kinds - set(table.measured_attention))
    if missing:
        yield Unmeasured(kind="attention", words=f"{' and '.join(missing)} attention")
    if shape.num_layers < table.measured_layers:
        yield Unmeasured(
            kind="depth",
            words=f"a model of fewer than {count_of(table.measured_layers, 'layer')}",
        )


def _kind(attention: Attention) -> str:
    """Name a kind of attention as its kernels differ.

    >>> _kind(GroupedAttention(num_heads=8, num_kv_heads=8, head_dim=64, window_tokens=128))
    'window'
    """
    if not isinstance(attention, GroupedAttention):
        return type(attention).__name__.removesuffix("Attention").lower()
    if attention.chosen_tokens is not None:
        return "sparse"
    return "full" if attention.window_tokens is None else "window"
