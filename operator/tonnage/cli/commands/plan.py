"""``tonnage plan``: what it takes to serve the models of some manifests. Needs no cluster."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from tonnage.api.objects import ModelDeployment
from tonnage.catalog.safetensors import Checkpoint
from tonnage.cli.answers.patience import counting
from tonnage.cli.answers.plan_words import is_served
from tonnage.cli.answers.planning import Planned, Refused, Terms, answer
from tonnage.cli.commands.options import (
    calibration_option,
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
    mention,
    search_progress,
    write_page,
    written,
)
from tonnage.cli.console import NO, OK, Failure, complain, output, remark, show
from tonnage.cli.read.calibration import read_calibration
from tonnage.cli.read.checkpoint import checkpoint_in
from tonnage.cli.read.classes import known_gpus
from tonnage.cli.read.hub import checkpoint_from_hub, config_from_hub
from tonnage.cli.read.manifest import Manifests, Resource, load, parse
from tonnage.cli.read.references import checked_text, config_of, target_of
from tonnage.cli.read.strict_yaml import ManifestError
from tonnage.cli.text.plan import answered

HELP: Final = """Compute replicas, max-num-seqs and cost for manifests. Needs no cluster.

Prints, with formulas and numbers: whether the model fits into GPU memory, the bottleneck, what
limits the batch size, the latencies, the number of replicas, and the cost. If spec.model.config
refers to a ConfigMap, or spec.scaleTarget to a Deployment, pass its manifest too: config.json is
read from the ConfigMap, engine version and flags from the Deployment.

\b
Examples:
  tonnage plan -f model.yaml
  tonnage plan -f model.yaml --requests-per-second 40      replace the demand of the spec
  tonnage plan -f model.yaml --model-config config.json    a model that is not in the catalogue
  tonnage plan -f model.yaml --hub                         the same, fetched from Hugging Face
  tonnage plan -f model.yaml --checkpoint DIR              exact weight sizes from safetensors
  tonnage plan -f model.yaml --calibration calibration.json  constants measured by calibrate
  tonnage plan -f models/ --html plan.html                 an HTML page with charts
  tonnage plan -f models/ -o json | jq '.[].plan.replicas'
  kubectl get mdep llama -o yaml | tonnage plan -f -

\b
Exit codes: 0 all can be served; 2 one cannot (not at all, or not its demand within maxReplicas),
or the input is invalid; 1 unexpected error.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    """What the command was given."""

    manifests: Manifests
    terms: Terms
    model_config: str | None
    checkpoint: Checkpoint | None
    asks_hub: bool


@click.command(help=HELP)
@filename_option
@output_option
@html_option
@textbook_option
@gpus_option
@model_config_option
@click.option(
    "--checkpoint",
    "checkpoint_folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with a checkpoint: weight sizes are read from the safetensors headers, the model "
    "from config.json.",
)
@click.option(
    "--hub",
    "asks_hub",
    is_flag=True,
    help="Fetch safetensors headers, and config.json of models that are not in the catalogue, from "
    "the Hugging Face Hub.",
)
@requests_per_second_option
@calibration_option
def plan(  # noqa: PLR0913  (one argument per option)
    *,
    names: tuple[str, ...],
    form: str,
    page_file: str | None,
    textbook: bool,
    gpus_folder: Path | None,
    config_file: str | None,
    checkpoint_folder: Path | None,
    asks_hub: bool,
    requests_per_s: float | None,
    calibration_file: Path | None,
) -> None:
    if textbook and calibration_file is not None:
        raise Failure("--textbook takes no --calibration: it has an efficiency of 1")
    check_page(page_file, form)
    progress = search_progress()
    terms = Terms(
        gpus=known_gpus(gpus_folder),
        is_textbook=textbook,
        requests_per_s=requests_per_s,
        calibration=None if calibration_file is None else read_calibration(calibration_file),
        between=counting(clock=time.monotonic, tell=progress.tell, begin=progress.begin),
    )
    manifests = load(names)
    inputs = _Inputs(
        manifests=manifests,
        terms=terms,
        model_config=_config_text(config_file, checkpoint_folder),
        checkpoint=checkpoint_in(checkpoint_folder) if checkpoint_folder else None,
        asks_hub=asks_hub,
    )
    for problem in manifests.problems:
        complain(problem)
    mention(manifests.others)
    if not manifests.model_deployments and not manifests.problems:
        raise Failure(f"no ModelDeployment of tonnage.dev in {', '.join(names)}")
    answers = [found for each in manifests.model_deployments if (found := _answer(each, inputs))]
    if page_file is not None and answers:
        from tonnage.cli.page.plan import plan_page  # noqa: PLC0415  (needs an extra)

        write_page(page_file, plan_page(answers))
    if page_file != "-":
        _print(answers, form)
    expected = len(manifests.model_deployments)
    is_yes = len(answers) == expected and all(is_served(each) for each in answers)
    sys.exit(OK if is_yes and not manifests.problems else NO)


def _config_text(config_file: str | None, checkpoint_folder: Path | None) -> str | None:
    """Return the config.json that was given, else that of the checkpoint."""
    if config_file is not None:
        return checked_text(config_file, option="--model-config")
    if checkpoint_folder is None or not (path := checkpoint_folder / "config.json").is_file():
        return None
    return checked_text(str(path), option="--checkpoint")


def _answer(resource: Resource, inputs: _Inputs) -> Planned | Refused | None:
    """Return the answer for one object, or none where it is not valid."""
    try:
        deployment = parse(resource)
        config = inputs.model_config or config_of(deployment, resource, inputs.manifests)
        if config is None and inputs.asks_hub:
            model = deployment.spec.model
            config = config_from_hub(model.id, model.revision)
        target = target_of(deployment, resource, inputs.manifests)
    except ManifestError as error:
        complain(str(error))
        return None
    return answer(
        deployment,
        inputs.terms,
        model_config=config,
        target=target,
        checkpoint=_checkpoint_of(deployment, inputs),
    )


def _checkpoint_of(deployment: ModelDeployment, inputs: _Inputs) -> Checkpoint | None:
    """Return the checkpoint that was given, else the one that the hub has, if it has one."""
    if inputs.checkpoint is not None or not inputs.asks_hub:
        return inputs.checkpoint
    model = deployment.spec.model
    try:
        return checkpoint_from_hub(model.id, model.revision)
    except Failure as failure:
        remark(f"Note: {failure.message}; the weights of {model.id} are counted from config.json")
        return None


def _print(answers: list[Planned | Refused], form: str) -> None:
    if form == "text":
        console = output()
        for number, each in enumerate(answers):
            if number:
                console.print()
            show(console, answered(each, is_ascii=console.options.ascii_only))
        return
    objects: list[dict[str, Any]] = [each.to_dict() for each in answers]
    for each in answers:
        if isinstance(each, Refused):
            complain(f"{each.deployment.namespace}/{each.deployment.name}: {each.message}")
    if objects:
        click.echo(written(objects[0] if len(objects) == 1 else objects, form))
