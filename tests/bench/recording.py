"""What the operator reads from the scrapes of a real engine, against the log of its requests.

    python tests/bench/recording.py FOLDER [--phases 0:60,60:150,150:210]

FOLDER holds ``requests.jsonl``, a line for each request with ``arrival_s``, ``prompt_tokens``,
``output_tokens`` and the ``ttft_s`` and ``e2e_s`` that its client saw, and ``scrapes.txt`` or
``scrapes.txt.gz``, pages of ``/metrics`` each headed by ``# scrape_at_s T`` on the same clock.
Every scrape is read as the operator reads it from raw samples of Prometheus, and the figures
go through the operator's own arithmetic. Phases are found in the log unless they are given.

Prints JSON. Errors of rates and means are relative to the log, of shares and numbers absolute.
``counted`` adds up the shortest windows of arrivals, one after the other; ``as_read`` is what the
loop would have been told at every scrape, over the window that it chose, against the log in that
window; ``windows_within`` leaves out those that reach back before the phase.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import click
import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "support"))  # so that it is one command

from recordings import POD, Logged, Watched, read_watched
from tonnage.estimate.demand import MeasuredDemand, attainment, measure_demand
from tonnage.estimate.lengths import measure_lengths
from tonnage.estimate.metrics import SLOW_SCRAPES, bounds_near
from tonnage.estimate.pages import BUCKETS

QUANTILES = (0.5, 0.9, 0.95)
LENGTHS = {
    "prompt_tokens": ("started_prompt_tokens", "started", "first_token_at_s"),
    "output_tokens": ("finished_output_tokens", "finished", "ended_at_s"),
}
"""(tokens, requests, when the engine counts both)"""
LATENCIES = {"ttft": ("ttft_s", "first_token_at_s"), "tpot": ("tpot_s", "ended_at_s")}
"""(latency, when the engine counts it)"""
Json = dict[str, Any]


def relative(estimated: float, true: float) -> float | None:
    return estimated / true - 1 if true else None


def compared(estimated: float, true: float, **more: float) -> Json:
    return {"estimated": estimated, "log": true, "error": relative(estimated, true), **more}


def arrivals(watched: Watched, first_s: float, last_s: float) -> Json:
    requests, logged, seconds, windows = watched.counted(first_s, last_s)
    if not windows:
        return {"windows": 0}
    return compared(
        requests / seconds,
        logged / seconds,
        requests=logged,
        counted_s=seconds,
        windows=windows,
        window_s=seconds / windows,
    )


def demand_at(watched: Watched, scrape_s: float) -> MeasuredDemand | None:
    return measure_demand(
        watched.seen(scrape_s),
        ready_pods=frozenset({POD["pod"]}),
    )


def as_read(watched: Watched, first_s: float, last_s: float) -> Json:
    """Return how the figure of each scrape compares with the log over its own window."""
    read = [
        (scrape_s, demand)
        for scrape_s in watched.scrapes_within(first_s, last_s)
        if (demand := demand_at(watched, scrape_s))
    ]
    if not read:
        return {"scrapes": 0}
    own = [each for each in read if each[0] - each[1].window_s >= first_s]
    return {
        "scrapes": len(read),
        "mean_window_s": mean(each.window_s for _, each in read),
        "mean_standard_error": mean(each.standard_error_per_s for _, each in read),
        "all_windows": _in_their_windows(watched, read),
        "windows_within": _in_their_windows(watched, own),
    }


def _in_their_windows(watched: Watched, read: Sequence[tuple[float, MeasuredDemand]]) -> Json:
    if not read:
        return {"scrapes": 0}
    true = [watched.num_logged(at_s - each.window_s, at_s) / each.window_s for at_s, each in read]
    estimated = [each.requests_per_s for _, each in read]
    sizes = [abs(one - other) for one, other in zip(estimated, true, strict=True)]
    return compared(mean(estimated), mean(true), scrapes=len(read), mean_size_of_error=mean(sizes))


def lengths(watched: Watched, first_s: float, last_s: float) -> Json:
    """Return mean lengths of those that the engine counted between two scrapes."""
    found: Json = {}
    for name, (tokens, requests, time) in LENGTHS.items():
        logged = watched.of_log(_attribute(time), first_s, last_s)
        if logged:
            estimated = watched.mean_tokens(tokens, requests, first_s, last_s)
            true = mean(getattr(each, name) for each in logged)
            found[name] = compared(estimated, true, requests=len(logged))
    return found


def _attribute(name: str) -> Callable[[Logged], float]:
    return lambda each: getattr(each, name)


def lengths_as_read(watched: Watched) -> Json:
    """Return the errors of the mean lengths that the loop is told at every scrape."""
    errors: dict[str, list[float]] = {name: [] for name in LENGTHS}
    window_s = (SLOW_SCRAPES - 1) * watched.interval_s
    for scrape_s in watched.recording.scrapes_s:
        told = measure_lengths(watched.seen(scrape_s))
        for name, (_, _, time) in LENGTHS.items():
            logged = watched.of_log(_attribute(time), scrape_s - window_s, scrape_s)
            if told and logged:
                true = mean(getattr(each, name) for each in logged)
                errors[name].append(getattr(told, name) / true - 1)
    return {name: spread(each) for name, each in errors.items()}


def spread(errors: Sequence[float]) -> Json:
    if not errors:
        return {"scrapes": 0}
    sizes = np.abs(errors)
    return {
        "scrapes": len(errors),
        "mean_error": mean(errors),
        "median_size": float(np.median(sizes)),
        "p90_size": float(np.quantile(sizes, 0.9)),
        "largest_size": float(sizes.max()),
    }


def queue(watched: Watched, first_s: float, last_s: float) -> Json:
    """Return the queue of each scrape against the log's requests beyond those that can run.

    The log does not say which of the requests in flight run: as many as ever ran together.
    """
    slots = max(value for _, value in _gauge(watched, "vllm:num_requests_running"))
    found = []
    for scrape_s in watched.scrapes_within(first_s, last_s):
        running, waiting = (
            watched.gauge(metric, scrape_s)
            for metric in ("vllm:num_requests_running", "vllm:num_requests_waiting")
        )
        in_flight = watched.in_flight(scrape_s)
        found.append((waiting, max(0.0, in_flight - slots), running + waiting, in_flight))
    waiting, beyond, known, logged = np.array(found).T
    return {
        "scrapes": len(found),
        "waiting": _numbers(waiting, beyond),
        "in_flight": _numbers(known, logged),
    }


def _gauge(watched: Watched, metric: str) -> list[tuple[float, float]]:
    return [point for points in watched.recording.series[metric].values() for point in points]


def _numbers(estimated: np.ndarray, true: np.ndarray) -> Json:
    return {
        "estimated_mean": float(estimated.mean()),
        "log_mean": float(true.mean()),
        "estimated_most": float(estimated.max()),
        "log_most": float(true.max()),
        "mean_size_of_error": float(np.abs(estimated - true).mean()),
    }


def limits(watched: Watched, latency: str) -> Iterator[tuple[float, bool]]:
    """Yield limits near quantiles of the log: bounds of the histogram, and others."""
    metric = {"ttft": "time_to_first_token", "tpot": "request_time_per_output_token"}[latency]
    ladder = {
        float(dict(labels)["le"])
        for labels in watched.recording.series[f"vllm:{metric}_seconds_bucket"]
    }
    values = [getattr(each, LATENCIES[latency][0]) for each in watched.log]
    exact = {min(ladder - {math.inf}, key=lambda le: abs(math.log(le / value)))
             for value in np.quantile(values, QUANTILES)}  # fmt: skip
    between = {float(f"{value:.2g}") for value in np.quantile(values, QUANTILES)} - ladder
    yield from ((limit_s, True) for limit_s in sorted(exact))
    yield from ((limit_s, False) for limit_s in sorted(between))


def attainments(watched: Watched, first_s: float, last_s: float) -> Json:
    """Return shares of requests within limits, of those that the engine counted in a time."""
    found: Json = {}
    for latency, (value, time) in LATENCIES.items():
        logged = [getattr(e, value) for e in watched.of_log(_attribute(time), first_s, last_s)]
        for limit_s, is_exact in limits(watched, latency) if logged else ():
            near = bounds_near(*([limit_s] if latency == each else [] for each in LATENCIES))
            [metric] = (metric for metric, name in BUCKETS.items() if name == latency)
            grown = watched.grown(metric, first_s, last_s)
            by_bound = {float(dict(labels)["le"]): each for labels, each in grown.items()}
            asked = {le: each for le, each in by_bound.items() if le in {*near, math.inf}}
            share = attainment([asked], limit_s=limit_s)
            true = mean(each <= limit_s for each in logged)
            found[f"{latency} {limit_s:g} s"] = {
                "is_bucket_bound": is_exact,
                "requests": len(logged),
                "estimated": share,
                "log": true,
                "error": None if share is None else share - true,
            }
    return found


def about(watched: Watched, first_s: float, last_s: float) -> Json:
    return {
        "from_s": first_s,
        "to_s": last_s,
        "requests": watched.num_logged(first_s, last_s),
        "arrival_rate": {
            "counted": arrivals(watched, first_s, last_s),
            "as_read": as_read(watched, first_s, last_s),
        },
        **lengths(watched, first_s, last_s),
        "queue": queue(watched, first_s, last_s),
        "attainment": attainments(watched, first_s, last_s),
    }


def report(watched: Watched, phases: Sequence[tuple[float, float]]) -> Json:
    """Return the errors of everything that is read, over each phase and over all of them."""
    scrapes_s = watched.recording.scrapes_s
    parts = [about(watched, *phase) for phase in phases]
    return {
        "recording": {
            "requests": len(watched.log),
            "scrapes": len(scrapes_s),
            "scrape_interval_s": watched.interval_s,
        },
        "phases": parts,
        "whole": about(watched, scrapes_s[0], scrapes_s[-1])
        | {"lengths_as_read": lengths_as_read(watched)},
        "largest_errors": {
            "arrival_rate": largest(each["arrival_rate"]["counted"] for each in parts),
            **{name: largest(each.get(name, {}) for each in parts) for name in LENGTHS},
            "attainment_on_bounds": largest(
                each
                for part in parts
                for each in part["attainment"].values()
                if each["is_bucket_bound"]
            ),
        },
    }


def largest(parts) -> float | None:
    sizes = [abs(each["error"]) for each in parts if each.get("error") is not None]
    return max(sizes, default=None)


def rounded(value):
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 4) if isinstance(value, float) else value


def _phases(_: click.Context, __: click.Parameter, value: str) -> list[tuple[float, float]]:
    try:
        pairs = [part.split(":") for part in value.split(",") if part]
        return [(float(start), float(end)) for start, end in pairs]
    except ValueError as error:
        raise click.BadParameter("write FROM:TO,FROM:TO in seconds") from error


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--phases", callback=_phases, default="", help="FROM:TO,FROM:TO in seconds.")
def main(folder: Path, phases: list[tuple[float, float]]) -> None:
    """Print the errors of what is read from the recording in FOLDER."""
    watched = read_watched(folder)
    click.echo(json.dumps(rounded(report(watched, phases or watched.phases())), indent=2))


if __name__ == "__main__":
    main()
