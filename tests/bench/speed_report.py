"""The errors of predicted serving speeds against measured ones, as a page that can be read."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
import yaml
from fit_speed import PRIOR_WEIGHT, fit, fit_with_client, read_samples
from speed_cases import FIRST_TOKENS, STEPS, case_of, predicted, with_speed
from speed_formula import Sample, columns_of, formula
from speed_left_out import left_out
from speed_priors import PRIORS
from speed_ranges import FEW_MODELS, KINDS, class_lines, range_lines
from speed_row import Row, number

from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.catalog.gpu import CatalogError

STEP = 1e-4
NOISE = 0.08
"""Of the logarithm of a row: what the constants leave unexplained in the median, and some more."""
CORRELATED, UNMOVED = 0.6, 0.9


def doubt_lines(samples: Sequence[Sample]) -> Iterator[str]:
    """Yield pairs that move together, and constants that stay as wide as their prior."""
    values = fit(samples)
    names = list(PRIORS)
    columns = columns_of(samples)
    middle = np.log(formula(values, columns))
    slopes = np.stack(
        [
            (np.log(formula({**values, name: values[name] * (1 + STEP)}, columns)) - middle) / STEP
            for name in names
        ],
        axis=1,
    )
    widths = np.array([PRIORS[name][1] for name in names])
    precision = slopes.T @ slopes / NOISE**2 + np.diag((PRIOR_WEIGHT / widths) ** 2)
    covariance = np.linalg.inv(precision)
    deviation = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(deviation, deviation)
    yield "| constants that move together | correlation |"
    yield "|---|---|"
    for one, other in combinations(range(len(names)), 2):
        if abs(correlation[one, other]) >= CORRELATED:
            yield f"| {names[one]}, {names[other]} | {correlation[one, other]:+.2f} |"
    kept = [
        name
        for name, found, width in zip(names, deviation, widths, strict=True)
        if found > UNMOVED * width / PRIOR_WEIGHT
    ]
    yield ""
    yield f"Left where their priors put them, since rows say little about them: {', '.join(kept)}."


Found = Mapping[str, object]
Errors = Mapping[str, float]
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
HEADER = "| | rows | median | p90 | bias |\n|---|---|---|---|---|"
MIN_GROUP = 4


def report(data: Path, configs: Path, rows: Sequence[Row], found: Sequence[Found]) -> str:
    """Return the page."""
    models = yaml.safe_load(configs.read_text())
    _, samples = fit_with_client(read_samples(data, configs))
    own = errors_of(rows, {str(each["id"]): each.get("predicted") for each in found})
    naive = errors_of(rows, naive_values(rows, models))
    judged = _judged(rows)
    by_left_out = left_out(judged, samples, models)
    cases = [case_of(row, models) for row in judged if row["id"] in by_left_out["model"]]
    sections = [
        _head(rows, found, own, naive, by_left_out),
        "\n".join(
            [
                "## Ranges by class",
                "",
                "Kind of model, whether the board has products in its weights' format, memory",
                f"of that board. Few: fewer than {FEW_MODELS} models, which says little of others.",
                "",
                *class_lines(cases, found, by_left_out["model"]),
            ]
        ),
        "\n".join(["## What the rows cannot tell", "", *doubt_lines(samples)]),
        *(
            _groups(title, rows, own, naive, key)
            for title, key in {
                "By model": lambda row: f"{_short(row['model'])} {row['weight_quant']}",
                "By GPU": lambda row: row["gpu"],
                "By engine": lambda row: f"vLLM {row['engine_version'].split(' ')[0] or 'unknown'}",
                "By source": lambda row: row["source"].partition(":")[0],
                "By batch": lambda row: _bucket(number(row["concurrency_or_batch"])),
                "By context": lambda row: _bucket(number(row["context_tokens"])),
            }.items()
        ),
        _engines(rows, own),
    ]
    return "\n\n".join(sections) + "\n"


def _judged(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row["engine"] == "vllm" and row["value"]]


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


def spread(errors: Iterable[float]) -> str:
    """Return number, median and 90th percentile of the size, and median error, as table cells."""
    known = list(errors)
    if not known:
        return "0 | - | - | -"
    size = [abs(error) for error in known]
    ninth = quantiles(size, n=10, method="inclusive")[-1] if len(size) > 1 else size[0]
    return f"{len(known)} | {median(size):.1%} | {ninth:.1%} | {median(known):+.1%}"


def _of(rows: Iterable[Row], errors: Errors, metrics: frozenset[str]) -> list[float]:
    return [
        errors[row["id"]]
        for row in rows
        if row["engine"] == "vllm" and row["metric"] in metrics and row["id"] in errors
    ]


def _head(
    rows: Sequence[Row],
    found: Sequence[Found],
    own: Errors,
    naive: Errors,
    left_out: Mapping[str, Errors],
) -> str:
    """Say how far off all rows are, by what the fit had seen of them."""
    lines = [
        "# Serving speed: predicted against measured",
        "",
        "Relative errors on rows of vLLM. Positive: predicted too slow, or too many tokens/s.",
        "Written by `tests/bench/accuracy.py --data ROWS.csv --configs MODELS.yaml`.",
        "",
        _made_of(rows),
        "So the first two columns count each model once: the median of the medians",
        f"of models with {MIN_GROUP} rows or more, and the worst of them.",
        "",
        HEADER.replace("| |", "| | models, median | worst |", 1) + "---|---|",
    ]
    for title, metrics in KINDS.items():
        fits = {**{f"{name} left out": each for name, each in left_out.items()}, "in-sample": own}
        for name, errors in {**fits, "naive roofline": naive}.items():
            of_all = spread(_of(rows, errors, metrics))
            lines.append(f"| {title}, {name} | {_by_model(rows, errors, metrics)} | {of_all} |")
    refused = sum(1 for each in found if each["refused"])
    lines += ["", *range_lines(rows, found, {**_named(left_out), "in-sample": own})]
    return "\n".join([*lines, "", f"{refused} of {len(rows)} rows are refused."])


def _named(left_out: Mapping[str, Errors]) -> dict[str, Errors]:
    return {f"{name} left out": errors for name, errors in left_out.items()}


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
    for row in rows:
        if row["engine"] == "vllm" and row["metric"] in metrics and row["id"] in errors:
            by_model[_short(row["model"])].append(abs(errors[row["id"]]))
    medians = [median(each) for each in by_model.values() if len(each) >= MIN_GROUP]
    return f"{median(medians):.1%} | {max(medians):.1%}" if medians else "- | -"


def _groups(
    title: str,
    rows: Sequence[Row],
    own: Errors,
    naive: Errors,
    key: Callable[[Row], str],
) -> str:
    """TPOT of each group, ours and the naive roofline's."""
    groups: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["engine"] == "vllm" and row["metric"] in STEPS:
            groups[key(row)].append(row)
    known = (own, naive)
    lines = [
        "| ".join([f"| {name} ", *(f"{spread(_of(members, each, STEPS))} " for each in known)])
        + "|"
        for name, members in sorted(groups.items())
        if len(members) >= MIN_GROUP
    ]
    head = "| TPOT | rows | median | p90 | bias | naive: rows | median | p90 | bias |"
    rule = "|---" * (1 + 4 * len(known)) + "|"
    return "\n".join([f"## {title}", "", head, rule, *lines])


def _engines(rows: Sequence[Row], own: Errors) -> str:
    lines = ["## Other engines", "", "The formula of vLLM, and up to four figures for each.", ""]
    lines.append(HEADER)
    for engine in sorted({row["engine"] for row in rows} - {"vllm"}):
        for title, metrics in {"TPOT": STEPS, "TTFT": FIRST_TOKENS}.items():
            errors = [
                own[row["id"]]
                for row in rows
                if row["engine"] == engine and row["metric"] in metrics and row["id"] in own
            ]
            lines.append(f"| {engine} {title} | {spread(errors)} |")
    return "\n".join(lines)


def _short(model: str) -> str:
    return model.rpartition("/")[2]


def _bucket(value: float) -> str:
    power = 1
    while power < value:
        power *= 4
    return f"up to {power:>6}"
