"""Options of commands as data classes: each field has its type and its settings for click."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tonnage.cli.console import NO_CLUSTER, Failure, failing, remark
from tonnage.units import DAY_S, MILLION, MINUTE_S, seconds

if TYPE_CHECKING:
    from tonnage.catalog.gpu import Gpu
    from tonnage.cli.read.live import LiveCluster
    from tonnage.estimate.calibration_file import CalibrationFile
    from tonnage.replay.measured_traffic import MeasuredTraffic
    from tonnage.settings import Settings

Command = Callable[..., None]
FILE: Final = click.Path(path_type=Path)
FORMATS: Final = ("text", "json", "yaml", "markdown", "csv")

CLUSTER_EXIT_CODES: Final = """\
Exit codes: 0 success; 2 not found; 3 invalid input; 4 the cluster cannot be reached; 5 it does not
have the ModelDeployment CRD; 6 access denied (RBAC); 1 unexpected error.
"""


def option(*names: str, **settings: Any) -> Any:
    """Return a field for an option; the arguments are those of ``click.option``.

    The help shows the default.
    """
    settings["show_default"] = settings.get("default") is not None
    return field(metadata={"decorator": lambda name: click.option(*names, name, **settings)})


def argument(**settings: Any) -> Any:
    """Return a field for an argument; the settings are those of ``click.argument``."""
    return field(metadata={"decorator": lambda name: click.argument(name, **settings)})


def takes(kind: type, name: str = "options") -> Callable[[Command], Command]:
    """Add the options of a data class to a command, which gets them as one argument.

    A field that is no option is a data class of options itself.
    """

    def decorate(command: Command) -> Command:
        @wraps(command)
        def taking(**given: Any) -> None:
            converted = _take(kind, given)
            command(**{name: converted}, **given)

        found: Command = taking
        for add in reversed([*options_of(kind)]):
            found = add(found)
        return found

    return decorate


def options_of(kind: Any) -> Iterator[Callable[[Command], Command]]:
    """Yield what adds the options of a data class, in the order of the help."""
    for each in fields(kind):
        if each.metadata:
            yield each.metadata["decorator"](each.name)
        else:
            yield from options_of(each.type)


def _take(kind: Any, given: dict[str, Any]) -> Any:
    """Make the data class of what was given, and leave the rest."""
    return kind(
        **{
            each.name: given.pop(each.name) if each.metadata else _take(each.type, given)
            for each in fields(kind)
        }
    )


def parsed(read: Callable[[Any], object]) -> Callable[..., object]:
    """Return a callback that reads a value where one is given; a ValueError says what is wrong."""

    def callback(_: click.Context, __: click.Parameter, value: object) -> object:
        try:
            return None if value is None else read(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return callback


def positive(value: float) -> float:
    if not (math.isfinite(value) and 0 < value <= MILLION):
        raise ValueError(f"{value:g} is not above 0 and up to {MILLION}")
    return value


def format_option(*forms: str, more: str = "") -> Any:
    """Return a field for ``-o``: the format of what is printed, in every command.

    ``forms``: the first is the default. ``more``: what they hold.
    """
    return option(
        "-o",
        "--format",
        type=click.Choice(forms),
        default=forms[0],
        help=f"Output format. {more}".rstrip(),
    )


def output_option() -> Any:
    """Return a field for the format of a command that prints its answer in any of five."""
    more = "json and yaml have all figures, markdown and csv a row for each answer."
    return format_option(*FORMATS, more=more)


def files_option() -> Any:
    """Return a field for the manifests of a command that needs some."""
    return option(
        "-f",
        "--filename",
        multiple=True,
        required=True,
        metavar="FILE|DIR|-",
        help="File or folder with manifests; may be repeated. '-' reads standard input.",
    )


def set_option(fields: str) -> Any:
    """Return a field for changes of a spec; ``fields``: which."""
    metavar, text = "PATH=VALUE", f"{fields}; may be repeated."
    return option("--set", multiple=True, metavar=metavar, help=text)


def page_option() -> Any:
    return option(
        "--html",
        metavar="FILE|-",
        help="Write an HTML page with charts; '-' writes it to standard output instead of the "
        "text.",
    )


def calibration_option() -> Any:
    return option(
        "--calibration",
        type=FILE,
        metavar="FILE",
        help="Constants that 'tonnage calibrate' measured, instead of those of the catalogue.",
    )


def calibration_in(path: Path | None) -> "CalibrationFile | None":
    if path is None:
        return None
    from tonnage.cli.read.manifest import read_text  # noqa: PLC0415  (slow)
    from tonnage.estimate.calibration_file import load  # noqa: PLC0415
    from tonnage.estimate.errors import CalibrationFileError  # noqa: PLC0415

    with failing(CalibrationFileError, where=f"{path}: "):
        return load(read_text(str(path)))


def namespace_option(help_text: str = "Namespace. Default: the one of the context.") -> Any:
    return option("-n", "--namespace", help=help_text)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions:
    """Which cluster is meant."""

    # fmt: off
    kubeconfig: str | None = option(
        "--kubeconfig", metavar="FILE", help="Path to the kubeconfig. Default: as for kubectl.")
    context: str | None = option(
        "--context", help="Context of the kubeconfig. Default: the current context.")
    # fmt: on

    def connect(self) -> "LiveCluster":
        from tonnage.cli.read.live import connect  # noqa: PLC0415  (slow)

        return connect(kubeconfig=self.kubeconfig, context=self.context)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusOptions:
    """How a Prometheus knows who asks."""

    # fmt: off
    token_file: str | None = option(
        "--prometheus-token-file", metavar="FILE", help="A bearer token.")
    auth_file: str | None = option("--prometheus-auth", metavar="FILE",
        help="Other credentials: YAML with what is in settings.prometheusAuth of the chart.")
    ca_file: str | None = option("--prometheus-ca-file", metavar="FILE", help="CA bundle for TLS.")
    # fmt: on

    def settings(self, url: str, selector: str = "") -> "Settings":
        from tonnage.cli.read.scraped_series import prometheus_settings  # noqa: PLC0415  (slow)

        given = {
            "prometheusUrl": url,
            "prometheusTokenFile": self.token_file,
            "prometheusCaFile": self.ca_file,
            "prometheusSelector": selector,
        }
        return prometheus_settings(given, self.auth_file)


def _folder(value: Path) -> Path:
    """Take a folder; a number, or names of classes, were meant for something else."""
    if value.is_dir():
        return value
    hint = "" if "/" in str(value) else f"; to name GPU classes write --gpu {value}"
    if str(value).isdecimal():
        hint = f"; for GPUs per replica set spec.hardware.gpusPerReplica: {value}"
    raise ValueError(f"there is no folder {value}{hint}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogOptions:
    """What is known beside the catalogue."""

    # fmt: off
    gpus_folder: Path | None = option("--gpus", type=FILE, callback=parsed(_folder),
        help="Folder with TOML files of GPU classes, to add classes or to set prices.")
    config_file: str | None = option("--model-config", metavar="FILE",
        help="config.json of the model, or the folder that it is in, instead of the one in the "
        "catalogue. If it says nothing of quantization, hf_quant_config.json or "
        "quantize_config.json beside it does.")
    # fmt: on

    def gpus(self) -> "Mapping[str, Gpu]":
        from tonnage.cli.commands.prices import known_gpus  # noqa: PLC0415  (slow)

        return known_gpus(self.gpus_folder)

    def config(self) -> str | None:
        if self.config_file is None:
            return None
        from tonnage.cli.read.references import checked_text  # noqa: PLC0415  (slow)

        return checked_text(self.config_file, option="--model-config")


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
        """Return what came to the pods of an object, or to those that are selected."""
        from tonnage.cluster.calls import PrometheusError  # noqa: PLC0415  (slow)
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
