"""A demand as it is, for ``plan``: a file of rates, a trace, or what Prometheus counted."""

from dataclasses import dataclass, replace
from pathlib import Path

from tonnage.cli.commands.options import FILE, option, parsed
from tonnage.cli.commands.plan_options import PlanInputOptions
from tonnage.cli.commands.traffic import TrafficOptions
from tonnage.cli.console import Failure, failing, remark
from tonnage.cli.read.demand_curve import DemandCurve, counted_curve, is_trace, read_curve
from tonnage.cli.read.manifest import ManifestObject, Manifests
from tonnage.units import DAY_S, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandOptions:
    """Where rates by the hour come from."""

    # fmt: off
    file: Path | None = option("--demand-file", metavar="FILE", type=FILE,
        help="Demand by the hour: csv with 'hour,requests_per_s' (or time; or requests, counted), "
        "a JSON list of rates, or a trace as replay reads it. Prints replicas by hour, GPU-hours "
        "and cost a month, beside a constant fleet.")
    start_s: float = option("--start-up", metavar="DURATION", default="240s",
        callback=parsed(seconds),
        help="With demand by the hour: from creating a replica to Ready.")
    traffic: TrafficOptions
    # fmt: on

    def curve(self, manifests: Manifests | None) -> DemandCurve | None:
        """Return the rates; ``manifests``: with the object whose traffic it is. None: not given.

        Raises:
            Failure: both sources are given, the one given cannot be read, or there are several
                objects.
        """
        file, url = self.file, self.traffic.prometheus_url
        if file is not None and url is not None:
            raise Failure("--demand-file and --prometheus both give the demand: leave one out")
        if file is None and url is None:
            return None
        found = manifests.model_deployments if manifests else ()
        if len(found) > 1:
            raise Failure(f"a demand by the hour is of one ModelDeployment, not of {len(found)}")
        if file is None:
            curve = self._counted(*found)
        else:
            curve = _of_trace(file) if is_trace(file) else read_curve(file)
        if curve.duration_s % DAY_S:
            remark(f"Note: {curve}, is no whole number of days: a month counts as all were so")
        return curve

    def _counted(self, resource: ManifestObject | None = None) -> DemandCurve:
        from tonnage.replay.trace_synthesis import trace_of  # noqa: PLC0415  (slow)

        if resource is None and self.traffic.selector is None:
            raise Failure("--prometheus without a manifest needs --selector: whose traffic is it?")
        namespace, name = (resource.namespace, resource.name) if resource else ("", "")
        found = self.traffic.counted(namespace, name)
        with failing(ValueError, where="--prometheus: "):
            trace = trace_of(found, longest_tokens=1)
        span, url = found.span, str(self.traffic.prometheus_url)
        return counted_curve(url, trace, span.num_steps * span.step_s, begins_s=span.from_s)


def _of_trace(file: Path) -> DemandCurve:
    from tonnage.cli.commands.replay_requests import read  # noqa: PLC0415  (slow)
    from tonnage.replay.trace_sampling import duration_of  # noqa: PLC0415

    trace = read(file, None)
    return counted_curve(file.name, trace, duration_of(trace))


def with_curve(question: PlanInputOptions, curve: DemandCurve) -> PlanInputOptions:
    """Return the question for the peak of a curve, with lengths that were counted.

    Raises:
        Failure: a rate is given too.
    """
    if question.requests_per_s is not None:
        raise Failure("--rps and a demand by the hour both give the rate: leave one out")
    given = {"promptTokens": question.prompt_tokens, "outputTokens": question.output_tokens}
    lengths = [
        f"{path}={number}" for path, number in curve.lengths if given[path.split(".")[1]] is None
    ]
    if lengths:
        remark(f"Note: lengths as counted: {', '.join(lengths)}")
    settings = (*lengths, *question.settings)
    return replace(question, requests_per_s=curve.peak_requests_per_s, settings=settings)
