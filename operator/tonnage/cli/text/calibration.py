"""A calibration for a terminal: its constants, its points, and a replay against its prediction."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.cli.answers.calibrating import typical_error
from tonnage.cli.answers.replayed import QUANTILES, Latencies, Replayed
from tonnage.cli.console import printable
from tonnage.cli.text.layout import DIM, heading, indent, table
from tonnage.estimate.calibration_file import CalibrationFile
from tonnage.units import count_of, format_s, significant

PERCENT = 100


def calibration(
    file: CalibrationFile, prior: SpeedConstants, replayed: Replayed | None
) -> RenderableType:
    """Return the whole result; ``prior``: what held before."""
    parts: list[RenderableType] = [
        heading(str(file.key)),
        Text(_headline(file), style="green"),
        Text(),
        indent(_constants(file, prior)),
        Text(),
        indent(_points(file)),
    ]
    if replayed is not None:
        parts += [Text(), Text(_replay_headline(replayed), style="bold")]
        parts.append(indent(_latencies(replayed)))
    parts += [Text(f"Note: {printable(each)}", style="yellow") for each in file.remarks]
    if file.validation is not None:
        parts += [Text(), Text(str(file.validation))]
    return Group(*parts)


def _headline(file: CalibrationFile) -> str:
    written = [
        f"{name} error {_share(typical_error(file.points, kind, is_prior=True))} before, "
        f"{_share(typical_error(file.points, kind, is_prior=False))} after"
        for name, kind in (("TPOT", "decode"), ("TTFT", "prefill"))
        if any(each.kind == kind for each in file.points)
    ]
    measured = f"{count_of(file.requests, 'request')}, {count_of(file.steps, 'step')}"
    return f"{'; '.join(written)} (medians; {measured})"


def _constants(file: CalibrationFile, prior: SpeedConstants) -> Table:
    found = table("", numbers=("prior", "measured"), no_wrap=True)
    learned, seen = file.constants, file.observed
    rows = {
        "bandwidth efficiency": (prior.bandwidth_efficiency, learned.bandwidth_efficiency),
        "prefill efficiency": (prior.prefill_efficiency, learned.prefill_efficiency),
        "overheads": (1.0, learned.overhead_factor),
    }
    for name, (before, after) in rows.items():
        found.add_row(name, significant(before), significant(after))
    found.add_row("observed MBU, at most", "", _share(seen.mbu_fraction))
    found.add_row("observed MFU, at most", "", _share(seen.mfu_fraction))
    if file.cache is not None:
        found.add_row("KV tokens of a rank", "", f"{file.cache.tokens:,.0f}")
    return found


def _points(file: CalibrationFile) -> Table:
    columns = ("at once", "prompt", "measured", "prior is off", "fit is off")
    found = table("load", numbers=columns, no_wrap=True)
    for each in file.points:
        found.add_row(
            each.kind,
            str(each.sequences),
            str(each.prompt_tokens),
            format_s(each.seconds),
            f"{each.prior_error_fraction:+.1%}",
            f"{each.error_fraction:+.1%}",
        )
    return found


def _replay_headline(replayed: Replayed) -> str:
    sent = replayed.sent
    others = {
        "failed": sent.num_failed,
        "cut off when the time was up": sent.num_cut,
        "longer than the engine takes": sent.num_too_long,
        "not due in the time": sent.num_left,
    }
    words = [f"{number} {what}" for what, number in others.items() if number]
    beside = f" ({', '.join(words)})" if words else ""
    return (
        f"Replay: {count_of(len(sent.ended), 'request')} at {significant(replayed.requests_per_s)} "
        f"requests/s{beside}"
    )


def _latencies(replayed: Replayed) -> Table:
    percentiles = (f"p{each * PERCENT:g}" for each in QUANTILES)
    found = table("", numbers=(*percentiles, "SLO p95", ""), no_wrap=True)
    limits = {"TTFT": replayed.limits.ttft_s, "TPOT": replayed.limits.tpot_s}
    kept = replayed.targets_met()
    for name, limit_s in limits.items():
        asked = "" if limit_s is None else format_s(limit_s)
        verdict = {True: "met", False: "missed", None: ""}[kept.get(name)]
        found.add_row(name, *_row(replayed.measured, name), asked, verdict)
        found.add_row("  predicted", *_row(replayed.predicted, name), "", "", style=DIM)
    return found


def _row(latencies: Latencies, name: str) -> Iterable[str]:
    found = latencies.ttft_s if name == "TTFT" else latencies.tpot_s
    return [format_s(each) for each in found] if found else ["-"] * len(QUANTILES)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
