"""``tonnage compare``: which GPU class serves a model for least. Needs no cluster."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from tonnage.api.objects import ModelDeployment
from tonnage.catalog.gpu import CatalogError, Gpu, find_gpu
from tonnage.cli.answers.comparing import Compared, compare_classes
from tonnage.cli.answers.patience import watched
from tonnage.cli.answers.planning import Terms, code_of, request_of
from tonnage.cli.commands.options import (
    filename_option,
    gpus_option,
    html_option,
    model_config_option,
    output_option,
    requests_per_second_option,
    textbook_option,
)
from tonnage.cli.commands.writing import (
    check_page,
    search_progress,
    the_one,
    write_page,
    written,
)
from tonnage.cli.console import NO, OK, Failure, complain, output, show
from tonnage.cli.read.classes import known_gpus
from tonnage.cli.read.manifest import Manifests, Resource, load, parse
from tonnage.cli.read.references import checked_text, config_of, target_of
from tonnage.cli.read.scale_target import TargetError
from tonnage.cli.read.strict_yaml import ManifestError
from tonnage.cli.text.compare import compared
from tonnage.sizing.request import SizingRequest

HELP: Final = """Rank GPU classes for one ModelDeployment by cost. Needs no cluster.

For each class, the parallelism with the fewest GPUs that serves the demand and meets the SLO
targets is used (offline: at the memory ceiling). Prints, for each class, workload, memory,
throughput by batch size, cost, and what has to be confirmed by measurement. Prices are rental
prices, or purchase prices with amortization if a file in --gpus sets them.

\b
Examples:
  tonnage compare -f model.yaml                          all classes
  tonnage compare -f model.yaml --gpu H100,H200,L40S     only these, with all details
  tonnage compare -f model.yaml --html compare.html      an HTML page with charts
  tonnage compare -f model.yaml --gpus prices/           your own prices
  tonnage compare -f model.yaml -o json | jq '.classes[0].plan'

\b
Exit codes: 0 a class can serve it; 2 none can, or the input is invalid; 1 unexpected error.
"""


@click.command(help=HELP)
@filename_option
@click.option(
    "--gpu",
    "classes",
    multiple=True,
    metavar="NAME[,NAME...]",
    help="GPU classes to compare, with all details; may be repeated. Default: all classes.",
)
@output_option
@html_option
@requests_per_second_option
@gpus_option
@model_config_option
@textbook_option
def compare(  # noqa: PLR0913  (one argument per option)
    *,
    names: tuple[str, ...],
    classes: tuple[str, ...],
    form: str,
    page_file: str | None,
    requests_per_s: float | None,
    gpus_folder: Path | None,
    config_file: str | None,
    textbook: bool,
) -> None:
    check_page(page_file, form)
    terms = Terms(gpus=known_gpus(gpus_folder), is_textbook=textbook, requests_per_s=requests_per_s)
    gpus = named_classes(classes, terms.gpus)
    manifests = load(names)
    resource = the_one(manifests, names, command="compare")
    config = checked_text(config_file, option="--model-config") if config_file else None
    deployment, request = _request(resource, manifests, terms, config)
    progress = search_progress()
    found = compare_classes(
        deployment,
        request,
        watched(gpus, clock=time.monotonic, tell=progress.tell, begin=progress.begin),
        are_named=bool(classes),
    )
    if page_file is not None:
        from tonnage.cli.page.compare import compare_page  # noqa: PLC0415  (needs an extra)

        write_page(page_file, compare_page(found))
    if page_file != "-":
        _print(found, form)
    sys.exit(OK if found.selection.choices else NO)


def named_classes(classes: tuple[str, ...], known: Mapping[str, Gpu]) -> list[Gpu]:
    """Return the classes that were named, by name or alias, each once; none named: all."""
    names = [name.strip() for each in classes for name in each.split(",")]
    if not names:
        return list(known.values())
    try:
        found = [find_gpu(name, known) for name in names]
    except CatalogError as error:
        raise Failure(str(error).replace("hardware.gpu", "--gpu")) from error
    return list({gpu.name: gpu for gpu in found}.values())


def _request(
    resource: Resource, manifests: Manifests, terms: Terms, config: str | None
) -> tuple[ModelDeployment, SizingRequest]:
    try:
        deployment = parse(resource)
        request = request_of(
            deployment.spec,
            terms,
            model_config=config or config_of(deployment, resource, manifests),
            target=target_of(deployment, resource, manifests),
        )
    except ManifestError as error:
        raise Failure(str(error)) from error
    except (CatalogError, TargetError) as error:
        raise Failure(f"{resource.name}: {code_of(error)}: {error}") from error
    return deployment, request


def _print(found: Compared, form: str) -> None:
    if form != "text":
        if not found.selection.choices:
            name = f"{found.deployment.namespace}/{found.deployment.name}"
            complain(f"{name}: none of these classes can serve it")
        click.echo(written(found.to_dict(), form))
        return
    console = output()
    for part in compared(found, console):
        show(console, part)
