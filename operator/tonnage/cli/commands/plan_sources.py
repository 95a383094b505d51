"""What ``plan`` is asked about beside files and options: a demand by the hour, and what runs."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tonnage.cli.commands.options import (
    FILE,
    AccessOptions,
    namespace_option,
    option,
    parsed,
)
from tonnage.cli.commands.plan_options import OFFLINE, PlanInputOptions
from tonnage.cli.commands.traffic import TrafficOptions
from tonnage.cli.console import Failure, failing, remark
from tonnage.cli.read.demand_curve import DemandCurve, counted_curve, is_trace, read_curve
from tonnage.cli.read.manifest import ManifestObject, Manifests
from tonnage.cli.read.nested import block
from tonnage.cli.read.spec_overrides import RATES
from tonnage.units import DAY_S, seconds

if TYPE_CHECKING:  # slow to import, and most plans need no cluster
    from tonnage.cli.read.fleet import RunningFleet


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
            curve = _of_trace(file, self.traffic.time_unit) if is_trace(file) else read_curve(file)
        if curve.duration_s % DAY_S:
            remark(f"Note: {curve.source}: no whole days, but a month counts as if all were so")
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


def _of_trace(file: Path, time_unit: str | None) -> DemandCurve:
    from tonnage.cli.commands.replay_requests import read  # noqa: PLC0415  (slow)
    from tonnage.replay.trace_sampling import duration_of  # noqa: PLC0415

    trace = read(file, time_unit)
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
    return replace(question, requests_per_s=max(curve.requests_per_s), settings=settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """What runs, and where."""

    # fmt: off
    name: str | None = option("--from-cluster", metavar="NAME",
        help="Plan what runs: a ModelDeployment, Deployment or LeaderWorkerSet of the cluster. "
        "Prints what it costs today, and what its demand would take. Reads, changes nothing.")
    namespace: str | None = namespace_option(
        "With --from-cluster: its namespace. Default: the one of the context.")
    access: AccessOptions
    # fmt: on

    def fleet(self, question: PlanInputOptions, gpu: str | None) -> "RunningFleet | None":
        """Return what runs; None: nobody asks for it.

        Raises:
            Failure: it cannot be read, or manifests are given too.
        """
        if self.name is None:
            return None
        if question.names:
            raise Failure("-f and --from-cluster both say what is planned: leave one out")
        from tonnage.cli.read.fleet import FleetReader  # noqa: PLC0415  (slow)

        cluster = self.access.connect()
        reader = FleetReader(cluster, self.namespace or cluster.namespace, self.name)
        return reader.read(question.model_id, gpu)


def check_demand(asked: Manifests) -> None:
    """Refuse what nobody says the demand of.

    Raises:
        Failure: with the options that say it.
    """
    for each in asked.model_deployments:
        if not block(each.content, "spec", "demand").keys() & {*RATES}:
            raise Failure(
                f"{each.name}: nothing says how many requests come: give --rps, --demand-file or "
                "--prometheus"
            )
        if "slo" not in block(each.content, "spec"):
            remark(OFFLINE)
