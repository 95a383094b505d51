"""``tonnage render``: the objects that the operator would apply for some manifests."""

import sys
from pathlib import Path
from typing import Any, Final

import click
import yaml

from tonnage.cli.answers.plan_words import exit_code, headline
from tonnage.cli.answers.planning import Planned, Refused, Terms, answer
from tonnage.cli.answers.rendering import children, servable, serve_line
from tonnage.cli.commands.forms import serialize
from tonnage.cli.commands.options import (
    calibration_in,
    calibration_option,
    filename_option,
    format_option,
    gpus_option,
    model_config_option,
    requests_per_second_option,
)
from tonnage.cli.commands.writing import list_ignored
from tonnage.cli.console import Failure, ManifestError, complain, printable, remark
from tonnage.cli.read.classes import known_gpus
from tonnage.cli.read.manifest import ManifestObject, Manifests, load, parse
from tonnage.cli.read.references import checked_text, config_of, target_of
from tonnage.manifests.children import Site
from tonnage.settings import Settings

HELP: Final = """Print the objects that the operator would apply for manifests. Needs no cluster.

Prints the Deployment, the Service and the PodMonitor of each ModelDeployment, with the flags of
vLLM that a plan for its spec.demand chooses. The Deployment has no replicas: the operator writes
those through its /scale. A Deployment that runs already keeps its flags while others gain little:
see 'tonnage diff --from-cluster'. Of engines that were never measured the operator expects less
than plan and render do (speedRange), so that a first --max-num-seqs may be lower than that.

\b
Examples:
  tonnage render -f model.yaml
  tonnage render -f model.yaml --serve            the vllm serve line
  tonnage render -f model.yaml --no-pod-monitor   without its operator
  tonnage render -f models/ -o json | jq '.items[].kind'
  tonnage render -f model.yaml | kubectl apply --dry-run=server -f -

Exit codes: 0 all can be served; 2 one cannot; 3 invalid input; 1 unexpected error.
"""
DEFAULT_INTERVAL_S: Final = Settings.model_fields["scrape_interval_s"].default


@click.command(help=HELP)
@filename_option
@format_option("yaml", "json")
@click.option(
    "--serve", "is_line", is_flag=True, help="Print the vllm serve line of each model instead."
)
@click.option(
    "--pod-monitor/--no-pod-monitor",
    "has_pod_monitors",
    default=True,
    show_default=True,
    help="Whether the cluster has the PodMonitor kind; without it pods are annotated for scraping.",
)
@gpus_option
@model_config_option
@requests_per_second_option
@calibration_option
def render(  # noqa: PLR0913  (one argument per option)
    *,
    names: tuple[str, ...],
    form: str,
    is_line: bool,
    has_pod_monitors: bool,
    gpus_folder: Path | None,
    config_file: str | None,
    requests_per_s: float | None,
    calibration_file: Path | None,
) -> None:
    site = Site(has_pod_monitors=has_pod_monitors, scrape_interval_s=DEFAULT_INTERVAL_S)
    terms = Terms(
        gpus=known_gpus(gpus_folder),
        requests_per_s=requests_per_s,
        calibration=calibration_in(calibration_file),
    )
    config = None if config_file is None else checked_text(config_file, option="--model-config")
    manifests = load(names)
    for problem in manifests.problems:
        complain(problem)
    list_ignored(manifests.others)
    if not manifests.model_deployments and not manifests.problems:
        raise Failure(f"no ModelDeployment of tonnage.dev in {', '.join(names)}")
    found = [
        each
        for resource in manifests.model_deployments
        if (each := _answer(resource, manifests, terms, config, site))
    ]
    planned = [each for each in found if isinstance(each, Planned)]
    for each in found:
        _remark_on(each)
    lines = [serve_line(each, site) for each in planned] if is_line else []
    click.echo(
        "\n".join(line for line in lines if line)
        if is_line
        else _manifest_text(planned, site, form)
    )
    is_broken = bool(manifests.problems) or len(found) < len(manifests.model_deployments)
    sys.exit(exit_code(found, is_broken=is_broken))


def _answer(
    resource: ManifestObject, manifests: Manifests, terms: Terms, config: str | None, site: Site
) -> Planned | Refused | None:
    """Return the answer for one object, or none where it is not valid."""
    try:
        model = parse(resource)
        text = config or config_of(model, resource, manifests)
        target = target_of(model, resource, manifests)
    except ManifestError as error:
        complain(str(error))
        return None
    return servable(answer(model, terms, model_config=text, target=target), site)


def _remark_on(answer: Planned | Refused) -> None:
    name = f"{answer.deployment.namespace}/{answer.deployment.name}"
    if isinstance(answer, Refused):
        complain(f"{name}: {answer.code}: {answer.message}")
    elif target := answer.deployment.spec.scale_target:
        remark(f"Note: {name}: scales a {target.kind} of yours and leaves its template alone")


def _manifest_text(planned: list[Planned], site: Site, form: str) -> str:
    if form == "json":
        items = [manifest for each in planned for manifest in children(each, site)]
        return serialize({"apiVersion": "v1", "kind": "List", "items": items}, form)
    return "---\n".join(_documents(each, site) for each in planned).rstrip("\n")


def _documents(planned: Planned, site: Site) -> str:
    name = f"{planned.deployment.namespace}/{planned.deployment.name}"
    made: list[dict[str, Any]] = list(children(planned, site))
    text = yaml.safe_dump_all(made, sort_keys=False, allow_unicode=True) if made else ""
    return f"# {printable(name)}: {printable(headline(planned))}\n{text}"
