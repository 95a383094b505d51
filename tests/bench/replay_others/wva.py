"""What only those analyzers of WVA share that the benchmark alone compares."""

from tonnage.estimate.pages import RUNNING, WAITING
from tonnage.replay.baselines.rule import KV_USAGE, scrapes_in
from tonnage.replay.baselines.wva import PEAK_S, MeanRequest
from tonnage.replay.prometheus import Points, Query
from tonnage.sizing.request import Flags


def highest(points: Points, _window_s: float, _at_s: float) -> float | None:
    return max((value for _, value in points), default=None)


def peaks(scrape_interval_s: float) -> dict[str, Query]:
    """Return the queries of KV usage and requests: the most of a minute."""
    scrapes = scrapes_in(PEAK_S, scrape_interval_s)
    return {
        name: Query(metric=metric, over=highest, scrapes=scrapes)
        for name, metric in (("kv_usage", KV_USAGE), ("waiting", WAITING), ("running", RUNNING))
    }


def allowed_tokens(shape: MeanRequest, flags: Flags) -> float:
    """Return what flags let a cache hold, where prompts are computed as fast as they leave."""
    prompt, output = shape.input_tokens, shape.output_tokens
    if output <= 0:
        return 0.0
    balanced = flags.max_num_batched_tokens * output / (prompt + output)
    return min(balanced, flags.max_num_seqs) * (prompt + output / 2)
