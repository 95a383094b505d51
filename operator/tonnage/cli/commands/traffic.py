"""Options of ``replay`` and ``plan`` that read the traffic of a running fleet from Prometheus."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from tonnage.cli.commands.options import PrometheusOptions, option, parsed
from tonnage.cli.console import NO_CLUSTER, Failure, remark
from tonnage.units import DAY_S, MINUTE_S, seconds

if TYPE_CHECKING:  # slow to import, and most plans ask nobody
    from tonnage.replay.measured_traffic import MeasuredTraffic

UNREACHABLE: Final = frozenset({"PrometheusUnreachable"})
LEAST_LAST_S, MOST_LAST_S = 10 * MINUTE_S, 90 * DAY_S
STEPS_S: Final = (15, 600)
TIME_UNITS: Final = ("s", "ms", "us", "ns")
"""Those that traces are read in, whose module a plan does not import."""


def _last(value: str) -> float:
    """Take a time in days, too: of traffic that is what people ask for."""
    days = value.removesuffix("d")
    is_days = value.endswith("d") and days.isascii() and days.isdigit()
    time_s = int(days) * DAY_S if is_days else seconds(value)
    if not LEAST_LAST_S <= time_s <= MOST_LAST_S:
        raise ValueError(f"{value!r} is not from 10m to 90d")
    return float(time_s)


def _step(value: str) -> float:
    step_s = seconds(value)
    low, high = STEPS_S
    if not low <= step_s <= high or step_s != int(step_s):
        raise ValueError(f"{value!r} is not in whole seconds from {low}s to {high // 60}m")
    return float(step_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficOptions:
    """Which traffic is meant, and who counted it."""

    # fmt: off
    prometheus_url: str | None = option("--prometheus", metavar="URL",
        help="Instead of a file: the traffic of your engines in this Prometheus.")
    last_s: float = option("--last", metavar="DURATION", default="1d", callback=parsed(_last),
        help="With --prometheus: how far back, such as 12h or 14d.")
    selector: str | None = option("--selector", metavar="MATCHERS",
        help="With --prometheus: label matchers of the series, such as "
        "'namespace=\"serving\",pod=~\"my-vllm-.+\"'. "
        "Default: the pods of the object's own name, in its namespace.")
    step_s: float = option("--step", metavar="DURATION", default="60s", callback=parsed(_step),
        help="With --prometheus: query step, at least two scrape intervals.")
    access: PrometheusOptions
    time_unit: str | None = option("--time-unit", type=click.Choice(TIME_UNITS),
        help="Unit of the times in a trace. Default: that of the column's name (arrival_s, "
        "arrival_ms) or of a known format; dates need none.")
    # fmt: on

    def counted(self, namespace: str, name: str) -> "MeasuredTraffic":
        """Return what came to the pods of an object, or to those that are selected.

        Raises:
            Failure: Prometheus does not answer, or not with the series of one fleet.
        """
        from tonnage.cluster.errors import PrometheusError  # noqa: PLC0415  (slow)
        from tonnage.cluster.ranges import Steps, ask_range  # noqa: PLC0415
        from tonnage.replay.measured_traffic import (  # noqa: PLC0415
            CountedError,
            Span,
            count_traffic,
        )

        own = f'namespace="{namespace}",pod=~"{name}-.+"'
        settings = self.access.settings(str(self.prometheus_url), self.selector or own)
        number = int(self.last_s // self.step_s)
        until_s = time.time() // self.step_s * self.step_s
        span = Span(
            selector=settings.prometheus_selector,
            from_s=until_s - number * self.step_s,
            num_steps=number,
            step_s=self.step_s,
        )
        steps = Steps(from_s=span.from_s, step_s=span.step_s, number=number)
        windows = Steps(from_s=span.from_s, step_s=span.window_s, number=span.num_windows)
        try:
            answers = {
                name: ask_range(settings, text, each)
                for each, asked in ((steps, span.by_step()), (windows, span.by_window()))
                for name, text in asked.items()
            }
            found = count_traffic(span, answers)
        except PrometheusError as error:
            code = {"exit_code": NO_CLUSTER} if error.reason in UNREACHABLE else {}
            raise Failure(f"--prometheus: {error}", **code) from error
        except CountedError as error:
            raise Failure(f"--prometheus: {error}") from error
        if found.gaps:
            remark(f"Note: {found.gaps}")
        return found
