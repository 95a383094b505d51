"""``--from-cluster``: a plan of what runs, with nothing to write by hand."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tonnage.cli.commands.options import AccessOptions, namespace_option, option
from tonnage.cli.commands.plan_options import OFFLINE, PlanInputOptions
from tonnage.cli.console import Failure, remark
from tonnage.cli.read.manifest import Manifests
from tonnage.cli.read.nested import block
from tonnage.cli.read.spec_overrides import RATES
from tonnage.cli.results.planning import RunningState

if TYPE_CHECKING:  # slow to import, and most plans need no cluster
    from tonnage.cli.read.fleet import RunningFleet


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """What runs, and where."""

    name: str | None = option(
        "--from-cluster",
        metavar="NAME",
        help="Plan what runs: a ModelDeployment, Deployment or LeaderWorkerSet of the cluster. "
        "Prints what it costs today, and what its demand would take. Reads, changes nothing.",
    )
    namespace: str | None = namespace_option(
        "With --from-cluster: its namespace. Default: the one of the context."
    )
    access: AccessOptions

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
        namespace = self.namespace or cluster.namespace
        reader = FleetReader(cluster=cluster, namespace=namespace, name=self.name)
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


def state_of(fleet: "RunningFleet") -> RunningState | None:
    """Return the flags that we recorded of what runs; None: those of its arguments count."""
    from tonnage.manifests.children import (  # noqa: PLC0415  (slow)
        flags_from_annotation,
        has_recorded_cache,
    )

    flags = flags_from_annotation(fleet.view.flags or "")
    if flags is None or not fleet.is_ours:
        return None
    has_cache = has_recorded_cache(fleet.view.flags)
    return RunningState(flags=flags, asks_the_same=True, has_host_cache=has_cache)
