"""The errors of predicted serving speeds against measured ones, as a page that can be read."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import yaml
from fit_speed import PRIOR_WEIGHT, fit, fit_with_client, predicted_s, read_samples
from measured import SPREAD_HEADER, spread, table
from speed_cases import FIRST_TOKENS, STEPS, Case, case_of, predicted, with_speed
from speed_formula import Sample, columns_of, formula
from speed_priors import PRIORS
from speed_row import BEFORE_2025, Row, era_name, number

from tonnage.catalog.engine_limits import scaling_of
from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.catalog.gpu import CatalogError
from tonnage.catalog.shape import StateAttention
from tonnage.units import MS_PER_S

Found = Mapping[str, object]
Errors = Mapping[str, float]
OUTSIDE = 0.2
"""Of measured values that a range of eight in ten leaves outside."""
FEW_MODELS = 5
"""Of a class: with fewer its share says little of other models."""
RANGES = (
    "eight in ten values in the range", "rows", "held", "pairs", "held", "high / low, median",
    "interval score",
)  # fmt: skip
BY_CLASS = (
    "by class, model left out", "models", "rows", "held", "pairs", "held",
    "range that eight in ten pairs need",
)  # fmt: skip
KINDS = {"TPOT": STEPS, "TTFT": FIRST_TOKENS, "static batch": frozenset({"batch_e2e_ms"})}


def widths_of(found: Sequence[Found]) -> dict[str, float]:
    """Return high over predicted by row: what is predicted over low is the same."""
    return {
        str(each["id"]): float(str(each["high"])) / float(str(each["predicted"]))
        for each in found
        if not each["refused"]
    }


def interval_score(error: float, width: float) -> float:
    """Return the score of a range, lower is better, in logarithms.

    Its width, and ``2 / 0.2`` times the distance of a measured value outside (Gneiting and Raftery
    2007, section 6.2).

    >>> round(interval_score(0.0, math.e), 3), round(interval_score(math.e**2 - 1, math.e), 3)
    (2.0, 12.0)
    """
    half = math.log(width)
    outside = max(0.0, abs(math.log1p(error)) - half)
    return 2 * half + 2 / OUTSIDE * outside


def _among(
    rows: Iterable[Row], known: Mapping[str, object], metrics: frozenset[str], engine: str = "vllm"
) -> list[Row]:
    """Return the rows of an engine with one of the metrics, of which something is known."""
    asked = (row for row in rows if row["engine"] == engine and row["metric"] in metrics)
    return [row for row in asked if row["id"] in known]


def ranges(rows: Sequence[Row], found: Sequence[Found], fits: Mapping[str, Errors]) -> str:
    """Say of each fit how its predictions lie in the ranges that are stated around them.

    A second share counts each pair of a model and a board once: rows of few pairs are most.
    """
    widths, lines = widths_of(found), []
    for title, metrics in KINDS.items():
        judged = _among(rows, widths, metrics)
        for fitted, errors in fits.items():
            held: defaultdict[tuple[str, str], list[bool]] = defaultdict(list)
            for row in judged:
                is_held = abs(math.log1p(errors[row["id"]])) <= math.log(widths[row["id"]])
                held[row["model"], row["gpu"]].append(is_held)
            names = [row["id"] for row in judged]
            score = mean(interval_score(errors[name], widths[name]) for name in names)
            width = median(widths[name] ** 2 for name in names)
            share = mean(each for pair in held.values() for each in pair)
            by_pair = mean(mean(pair) for pair in held.values())
            shares = (f"{share:.0%}", f"{len(held)}", f"{by_pair:.0%}")
            title_of = f"{title}, {fitted}"
            lines.append([title_of, f"{len(names)}", *shares, f"{width:.2f}", f"{score:.2f}"])
    return table(RANGES, lines)


def class_of(case: Case) -> str:
    """Name what decides which kernels a row ran: kind of model, format on its board, and memory."""
    shape, weights = case.shape, case.shape.weight_format
    states = [isinstance(each, StateAttention) for _, each in shape.attentions()]
    layers = "hybrid" if any(states) else "experts" if shape.has_experts else "dense"
    kernels = "native" if weights.compute in case.gpu.peak_flop_per_s else "unpacked"
    return f"{layers}, {kernels}, {case.gpu.memory_kind.upper()}"


def by_class(cases: Sequence[Case], found: Sequence[Found], errors: Errors) -> str:
    """Say by class how rows whose model the fit had not seen lie in their ranges."""
    widths, lines = widths_of(found), []
    for title, metrics in KINDS.items():
        classes: defaultdict[str, defaultdict[tuple[str, str], list[Case]]]
        classes = defaultdict(lambda: defaultdict(list))
        for case in cases:
            if case.metric in metrics and case.row["id"] in errors:
                classes[class_of(case)][case.row["model"], case.row["gpu"]].append(case)
        for name, pairs in sorted(classes.items()):
            away = [[_distance(case, errors) for case in each] for each in pairs.values()]
            held = [
                [_distance(case, errors) <= math.log(widths[case.row["id"]]) for case in each]
                for each in pairs.values()
            ]
            number = len({model for model, _ in pairs})
            share = f"{mean(each for pair in held for each in pair):.0%}"
            by_pair, needed = f"{mean(map(mean, held)):.0%}", f"{math.expm1(_needed(away)):.0%}"
            models = f"{number}{' (few)' if number < FEW_MODELS else ''}"
            counts = (f"{sum(map(len, held))}", share, f"{len(held)}", by_pair)
            lines.append([f"{title}, {name}", models, *counts, needed])
    return table(BY_CLASS, lines)


def _distance(case: Case, errors: Errors) -> float:
    return abs(math.log1p(errors[case.row["id"]]))


def _needed(pairs: Sequence[Sequence[float]]) -> float:
    """Return the distance that eight in ten keep where each pair counts once."""
    weighed = sorted((each, 1 / len(pair)) for pair in pairs for each in pair)
    left = (1 - OUTSIDE) * len(pairs)
    for each, weight in weighed:
        left -= weight
        if left <= 0:
            return each
    return weighed[-1][0]


JUDGED = STEPS | FIRST_TOKENS | {"batch_e2e_ms"}


def source_of(row: Row) -> str:
    """Name a source without the file in it."""
    return row["source"].partition(":")[0]


def time_of(row: Row) -> str:
    """Name the month of a measurement, or the year where no more is told."""
    if era_name(row) in BEFORE_2025:
        return era_name(row)
    told = re.findall(r"20\d\d-\d\d", f"{row['engine_version']} {row['note']}")
    return told[-1] if told else "unknown"


KEYS: Mapping[str, Callable[[Case], str]] = {
    "model": lambda case: case.row["model"],
    "format": lambda case: scaling_of(case.shape.weight_format),
    "GPU": lambda case: case.row["gpu"],
    "source": lambda case: source_of(case.row),
    "time": lambda case: time_of(case.row),
}


def left_out(
    rows: Sequence[Row], samples: Sequence[Sample], models: Mapping[str, Any]
) -> dict[str, Errors]:
    """Return the errors of each row with all that share its model, format ... left out.

    ``samples``: with what simulated clients make of the constants of all rows.
    """
    judged = [case_of(row, models) for row in rows if row["metric"] in JUDGED]
    return {name: held_out(judged, samples, key) for name, key in KEYS.items()}


def held_out(
    judged: Sequence[Case], samples: Sequence[Sample], key: Callable[[Case], str]
) -> dict[str, float]:
    """Return the errors of each group by a fit on the samples of the others."""
    errors: dict[str, float] = {}
    for held in sorted({key(case) for case in judged}):
        values = fit([each for each in samples if key(each.case) != held])
        for case in judged:
            if key(case) == held:
                ms = predicted_s(case, values) * MS_PER_S
                errors[case.row["id"]] = ms / float(case.row["value"]) - 1
    return errors


STEP = 1e-4
NOISE = 0.08
"""Of the logarithm of a row: what the constants leave unexplained in the median, and some more."""
CORRELATED, UNMOVED = 0.6, 0.9


def doubts(samples: Sequence[Sample]) -> str:
    """Return pairs that move together, and constants that stay as wide as their prior."""
    values = fit(samples)
    names = list(PRIORS)
    columns = columns_of(samples)
    middle = np.log(formula(values, columns))
    slopes = [
        (np.log(formula({**values, name: values[name] * (1 + STEP)}, columns)) - middle) / STEP
        for name in names
    ]
    by_row, widths = np.stack(slopes, axis=1), np.array([PRIORS[name][1] for name in names])
    precision = by_row.T @ by_row / NOISE**2 + np.diag((PRIOR_WEIGHT / widths) ** 2)
    covariance = np.linalg.inv(precision)
    deviation = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(deviation, deviation)
    together = [
        (f"{names[one]}, {names[other]}", f"{correlation[one, other]:+.2f}")
        for one, other in combinations(range(len(names)), 2)
        if abs(correlation[one, other]) >= CORRELATED
    ]
    kept = [
        name
        for name, found, width in zip(names, deviation, widths, strict=True)
        if found > UNMOVED * width / PRIOR_WEIGHT
    ]
    return (
        table(["constants that move together", "correlation"], together)
        + f"\n\nLeft where their priors put them, since rows say little about them: "
        f"{', '.join(kept)}."
    )


NAIVE = SpeedConstants(
    bandwidth_efficiency=0.8,
    compute_efficiency=0.5,
    prefill_efficiency=0.5,
    per_step_s=0,
    per_kernel_s=0,
    per_scaled_product_s=0,
    per_sequence_s=0,
    per_all_reduce_s=0,
    prefill_exposed_fraction=0,
)
"""80 % of bandwidth, 50 % of peak, and nothing else takes time."""
MIN_GROUP = 4
HEAD = """\
# Serving speed: predicted against measured

Relative errors on rows of vLLM. Positive: predicted too slow, or too many tokens/s.
Written by `tests/bench/speed.py --data ROWS.csv --configs MODELS.yaml --report PAGE`.

{of}
So the first two columns count each model once: the median of the medians
of models with {least} rows or more, and the worst of them.
"""
ENGINES = "## Other engines\n\nThe formula of vLLM, and up to four figures for each.\n"
CLASSES = f"""\
Kind of model, whether the board has products in its weights' format, memory
of that board. Few: fewer than {FEW_MODELS} models, which says little of others."""


def report(data: Path, configs: Path, rows: Sequence[Row], found: Sequence[Found]) -> str:
    """Return the page."""
    models = yaml.safe_load(configs.read_text())
    _, samples = fit_with_client(read_samples(data, configs))
    own = errors_of(rows, {str(each["id"]): each.get("predicted") for each in found})
    naive = errors_of(rows, naive_values(rows, models))
    judged = [row for row in rows if row["engine"] == "vllm" and row["value"]]
    by_left_out = left_out(judged, samples, models)
    cases = [case_of(row, models) for row in judged if row["id"] in by_left_out["model"]]
    fits = {**{f"{name} left out": each for name, each in by_left_out.items()}, "in-sample": own}
    keys: Mapping[str, Callable[[Row], str]] = {
        "By model": lambda row: f"{_short(row['model'])} {row['weight_quant']}",
        "By GPU": lambda row: row["gpu"],
        "By engine": lambda row: f"vLLM {row['engine_version'].split(' ')[0] or 'unknown'}",
        "By source": source_of,
        "By batch": lambda row: _bucket(number(row["concurrency_or_batch"])),
        "By context": lambda row: _bucket(number(row["context_tokens"])),
    }
    sections = [
        _head(rows, found, naive, fits),
        "## Ranges by class",
        CLASSES,
        by_class(cases, found, by_left_out["model"]),
        "## What the rows cannot tell",
        doubts(samples),
        *(_groups(title, rows, own, naive, key) for title, key in keys.items()),
        _engines(rows, own),
    ]
    return "\n\n".join(sections) + "\n"


def errors_of(rows: Iterable[Row], values: Mapping[str, object]) -> dict[str, float]:
    """Return the relative errors of the rows that have both figures."""
    return {
        row["id"]: float(str(values[row["id"]])) / float(row["value"]) - 1
        for row in rows
        if row["value"] and values.get(row["id"]) not in {None, ""}
    }


def naive_values(rows: Iterable[Row], models: Mapping[str, Any]) -> dict[str, object]:
    """Return what a roofline without any overhead says."""
    values: dict[str, object] = {}
    for row in rows:
        try:
            case = case_of(row, models)
            replica = with_speed(case.replica, NAIVE)
            values[row["id"]] = predicted(replace(case, replica=replica))
        except (CatalogError, KeyError):
            continue
    return values


def _of(
    rows: Iterable[Row], errors: Errors, metrics: frozenset[str], engine: str = "vllm"
) -> list[float]:
    return [errors[row["id"]] for row in _among(rows, errors, metrics, engine)]


def _head(
    rows: Sequence[Row], found: Sequence[Found], naive: Errors, fits: Mapping[str, Errors]
) -> str:
    """Say how far off all rows are, by what the fit had seen of them."""
    lines = [
        f"| {title}, {name} | {_by_model(rows, errors, metrics)} | "
        f"{spread(_of(rows, errors, metrics))} |"
        for title, metrics in KINDS.items()
        for name, errors in {**fits, "naive roofline": naive}.items()
    ]
    header = SPREAD_HEADER.replace("| |", "| | models, median | worst |", 1) + "---|---|"
    refused = f"{sum(1 for each in found if each['refused'])} of {len(rows)} rows are refused."
    head = HEAD.format(of=_made_of(rows), least=MIN_GROUP)
    return "\n".join([head, header, *lines, "", ranges(rows, found, fits), "", refused])


def _made_of(rows: Sequence[Row]) -> str:
    """Say which models make up most of the table."""
    steps = [row["model"] for row in rows if row["engine"] == "vllm" and row["metric"] in STEPS]
    first, second = Counter(steps).most_common(2)
    share = (first[1] + second[1]) / len(steps)
    return (
        f"{_short(first[0])} and {_short(second[0])} are {share:.0%} of the {len(steps)} rows of "
        f"TPOT, of {len(set(steps))} models."
    )


def _by_model(rows: Sequence[Row], errors: Errors, metrics: frozenset[str]) -> str:
    """Return the median over models of their median error, and the largest, as table cells."""
    by_model: defaultdict[str, list[float]] = defaultdict(list)
    for row in _among(rows, errors, metrics):
        by_model[_short(row["model"])].append(abs(errors[row["id"]]))
    medians = [median(each) for each in by_model.values() if len(each) >= MIN_GROUP]
    return f"{median(medians):.1%} | {max(medians):.1%}" if medians else "- | -"


def _groups(
    title: str, rows: Sequence[Row], own: Errors, naive: Errors, key: Callable[[Row], str]
) -> str:
    """TPOT of each group, ours and the naive roofline's."""
    groups: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["engine"] == "vllm" and row["metric"] in STEPS:
            groups[key(row)].append(row)
    lines = [
        (name, *(spread(_of(members, each, STEPS)) for each in (own, naive)))
        for name, members in sorted(groups.items())
        if len(members) >= MIN_GROUP
    ]
    head = "| TPOT | rows | median | p90 | bias | naive: rows | median | p90 | bias |"
    cells = [f"| {' | '.join(each)} |" for each in lines]
    return "\n".join([f"## {title}", "", head, "|---" * 9 + "|", *cells])


def _engines(rows: Sequence[Row], own: Errors) -> str:
    lines = [
        f"| {engine} {title} | {spread(_of(rows, own, metrics, engine))} |"
        for engine in sorted({row["engine"] for row in rows} - {"vllm"})
        for title, metrics in {"TPOT": STEPS, "TTFT": FIRST_TOKENS}.items()
    ]
    return "\n".join([ENGINES, SPREAD_HEADER, *lines])


def _short(model: str) -> str:
    return model.rpartition("/")[2]


def _bucket(value: float) -> str:
    power = 1
    while power < value:
        power *= 4
    return f"up to {power:>6}"
