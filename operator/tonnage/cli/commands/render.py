"""``tonnage render``: the objects that the operator would apply for some manifests."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click
import yaml

from tonnage.cli.commands.options import (
    CatalogOptions,
    calibration_in,
    calibration_option,
    files_option,
    format_option,
    option,
    takes,
)
from tonnage.cli.commands.output_files import answers_for, check_some
from tonnage.cli.console import print_error, printable, remark, serialize
from tonnage.cli.read.manifest import load
from tonnage.cli.read.references import References
from tonnage.cli.results.differing import offload_of
from tonnage.cli.results.plan_summary import exit_code, headline, object_label
from tonnage.cli.results.planning import PlanContext, Planned, Refused
from tonnage.cli.results.rendering import FILE_SITE, children, servable, serve_line
from tonnage.manifests.children import Site

HELP: Final = """Print the objects that the operator would apply for manifests. Needs no cluster.

Prints the Deployment, the Service and the PodMonitor of each ModelDeployment, with the flags of
vLLM that a plan for its spec.demand chooses; with spec.topology the objects of each role. The
Deployment has no replicas: the operator writes those through its /scale. A Deployment that runs
already keeps its flags while others gain little: see 'tonnage diff --from-cluster'. With inTime
the operator's first limits of the queue may be lower: those of slow engines.

\b
Examples:
  tonnage render -f model.yaml
  tonnage render -f model.yaml --serve            the vllm serve line
  tonnage render -f model.yaml --no-pod-monitor   without its operator
  tonnage render -f models/ -o json | jq '.items[].kind'
  tonnage render -f model.yaml | kubectl apply --dry-run=server -f -

Exit codes: 0 all can be served; 2 one cannot; 3 invalid input; 1 unexpected error.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderOptions:
    # fmt: off
    names: tuple[str, ...] = files_option()
    form: str = format_option("yaml", "json")
    is_line: bool = option(
        "--serve", is_flag=True, help="Print the vllm serve line of each model instead.")
    has_pod_monitors: bool = option("--pod-monitor/--no-pod-monitor", default=True,
        help="Whether the cluster has the PodMonitor kind; without it pods are annotated for "
        "scraping.")
    catalog: CatalogOptions
    calibration_file: Path | None = calibration_option()
    # fmt: on


@click.command(help=HELP)
@takes(RenderOptions)
def render(*, options: RenderOptions) -> None:
    site = replace(FILE_SITE, has_pod_monitors=options.has_pod_monitors)
    terms = PlanContext(
        gpus=options.catalog.gpus(), calibration=calibration_in(options.calibration_file)
    )
    beside = References(config=options.catalog.config())
    manifests = load(options.names)
    check_some(manifests, options.names)
    answers = [answers_for(each, manifests, terms, beside) for each in manifests.model_deployments]
    found = [servable(each, site) for some in answers for each in some]
    planned = [each for each in found if isinstance(each, Planned)]
    for each in found:
        _remark_on(each)
    lines = filter(None, (serve_line(each, site) for each in planned))
    click.echo("\n".join(lines) if options.is_line else _manifest_text(planned, site, options.form))
    is_broken = bool(manifests.problems) or not all(answers)
    sys.exit(exit_code(found, is_broken=is_broken))


def _remark_on(answer: Planned | Refused) -> None:
    name = object_label(answer)
    if isinstance(answer, Refused):
        print_error(f"{name}: {answer.code}: {answer.message}")
    elif target := answer.deployment.spec.scale_target:
        remark(f"Note: {name}: scales a {target.kind} of yours and leaves its template alone")
    elif offload := offload_of(answer):
        remark(f"Note: {name}: KV offload: {offload}")


def _manifest_text(planned: list[Planned], site: Site, form: str) -> str:
    if form == "json":
        items = [manifest for each in planned for manifest in children(each, site)]
        return serialize({"apiVersion": "v1", "kind": "List", "items": items}, form)
    return "---\n".join(_documents(each, site) for each in planned).rstrip("\n")


def _documents(planned: Planned, site: Site) -> str:
    made: list[dict[str, Any]] = list(children(planned, site))
    text = yaml.safe_dump_all(made, sort_keys=False, allow_unicode=True) if made else ""
    return f"# {printable(object_label(planned))}: {printable(headline(planned))}\n{text}"
