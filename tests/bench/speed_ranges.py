"""How good stated ranges are: how often they hold, how wide they are, and both in one score."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import mean, median

from speed_cases import FIRST_TOKENS, STEPS, Case
from speed_row import Row

from tonnage.catalog.shape import StateAttention

Found = Mapping[str, object]
Errors = Mapping[str, float]
OUTSIDE = 0.2
"""Of measured values that a range of eight in ten leaves outside."""
FEW_MODELS = 5
"""Of a class: with fewer its share says little of other models."""
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


def range_lines(
    rows: Sequence[Row], found: Sequence[Found], errors_by_fit: Mapping[str, Errors]
) -> list[str]:
    """Say of each fit how its predictions lie in the ranges that are stated around them.

    A second share counts each pair of a model and a board once: rows of few pairs are most.
    """
    widths = widths_of(found)
    lines = [
        "| eight in ten values in the range | rows | held | pairs | held | high / low, median "
        "| interval score |",
        "|---|---|---|---|---|---|---|",
    ]
    for title, metrics in KINDS.items():
        judged = [
            row
            for row in rows
            if row["engine"] == "vllm" and row["metric"] in metrics and row["id"] in widths
        ]
        for fit, errors in errors_by_fit.items():
            held: defaultdict[tuple[str, str], list[bool]] = defaultdict(list)
            for row in judged:
                is_held = abs(math.log1p(errors[row["id"]])) <= math.log(widths[row["id"]])
                held[row["model"], row["gpu"]].append(is_held)
            names = [row["id"] for row in judged]
            score = mean(interval_score(errors[name], widths[name]) for name in names)
            width = median(widths[name] ** 2 for name in names)
            share = mean(each for pair in held.values() for each in pair)
            by_pair = mean(mean(pair) for pair in held.values())
            lines.append(
                f"| {title}, {fit} | {len(names)} | {share:.0%} | {len(held)} | {by_pair:.0%} "
                f"| {width:.2f} | {score:.2f} |"
            )
    return lines


def class_of(case: Case) -> str:
    """Name what decides which kernels a row ran: kind of model, format on its board, and memory."""
    shape, weights = case.shape, case.shape.weight_format
    states = [isinstance(each, StateAttention) for _, each in shape.attentions()]
    layers = "hybrid" if any(states) else "experts" if shape.has_experts else "dense"
    kernels = "native" if weights.compute in case.gpu.peak_flop_per_s else "unpacked"
    return f"{layers}, {kernels}, {case.gpu.memory_kind.upper()}"


def class_lines(cases: Sequence[Case], found: Sequence[Found], errors: Errors) -> list[str]:
    """Say by class how rows whose model the fit had not seen lie in their ranges."""
    widths = widths_of(found)
    lines = [
        "| by class, model left out | models | rows | held | pairs | held | range that eight in "
        "ten pairs need |",
        "|---|---|---|---|---|---|---|",
    ]
    for title, metrics in KINDS.items():
        classes: defaultdict[str, defaultdict[tuple[str, str], list[Case]]]
        classes = defaultdict(lambda: defaultdict(list))
        for case in cases:
            if case.metric in metrics and case.row["id"] in errors:
                classes[class_of(case)][case.row["model"], case.row["gpu"]].append(case)
        for name, pairs in sorted(classes.items()):
            held = [
                [_distance(case, errors) <= math.log(widths[case.row["id"]]) for case in each]
                for each in pairs.values()
            ]
            num_models = len({model for model, _ in pairs})
            few = " (few)" if num_models < FEW_MODELS else ""
            needed = math.expm1(
                _needed([[_distance(c, errors) for c in e] for e in pairs.values()])
            )
            lines.append(
                f"| {title}, {name} | {num_models}{few} | {sum(map(len, held))} "
                f"| {mean(each for pair in held for each in pair):.0%} | {len(held)} "
                f"| {mean(map(mean, held)):.0%} | {needed:.0%} |"
            )
    return lines


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
