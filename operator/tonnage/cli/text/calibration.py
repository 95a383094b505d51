"""A calibration for a terminal: its constants and its points."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.cli.answers.calibrating import typical_error
from tonnage.cli.console import printable
from tonnage.cli.text.layout import heading, indent, table
from tonnage.estimate.calibration_file import CalibrationFile
from tonnage.units import count_of, format_s, significant


def calibration(file: CalibrationFile, prior: SpeedConstants) -> RenderableType:
    """Return the whole result; ``prior``: what held before."""
    parts: list[RenderableType] = [
        heading(str(file.key)),
        Text(_headline(file), style="green"),
        Text(),
        indent(_constants(file, prior)),
        Text(),
        indent(_points(file)),
    ]
    parts += [Text(f"Note: {printable(each)}", style="yellow") for each in file.remarks]
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


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
