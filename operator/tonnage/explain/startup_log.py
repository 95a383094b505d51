"""What the engine will log about its cache when it starts, to hold against the plan."""

from collections.abc import Iterator

from tonnage.sizing.memory.layout import LoggedFigures
from tonnage.sizing.plan import Sizing


def logged_figures(sizing: Sizing) -> LoggedFigures:
    """Return the figures that each data-parallel rank of the engine logs."""
    replica = sizing.replica
    layout, split = replica.layout, sizing.flags.parallelism
    return layout.logged_figures(
        int(replica.kv_pool_bytes // layout.bytes_per_block),
        context_tokens=sizing.request.context_tokens,
        in_flight_tokens=layout.in_flight_tokens(
            sizing.flags.max_num_batched_tokens, split.pipeline
        ),
    )


def logged_lines(sizing: Sizing) -> Iterator[str]:
    """Yield what to look for in the log of a start."""
    figures = logged_figures(sizing)
    each = " on each data-parallel rank" if sizing.flags.parallelism.data > 1 else ""
    yield (
        f"vLLM {sizing.request.engine.minor} will print {figures.kv_tokens:,} tokens, "
        f"maximum concurrency {figures.max_concurrency:.2f}{each}"
    )
