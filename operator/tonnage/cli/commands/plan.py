"""``tonnage plan``: what it takes to serve the models of some manifests. Needs no cluster."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from tonnage.cli.commands.options import (
    calibration_in,
    calibration_option,
    output_option,
    takes,
)
from tonnage.cli.commands.output_files import answers_for, check_some, search_progress
from tonnage.cli.commands.output_formats import serialize
from tonnage.cli.commands.plan_extras import RolesAsked
from tonnage.cli.commands.plan_options import (
    PlanInputOptions,
    asking,
    beside,
    terms_of,
)
from tonnage.cli.console import Failure, output, print_error, remark, show
from tonnage.cli.results.plan_summary import exit_code, object_label, obstacles
from tonnage.cli.results.planning import Planned, Refused, with_savings
from tonnage.cli.results.rendering import with_obstacle
from tonnage.cli.results.rows import plan_row
from tonnage.cli.text.plan import answer_report
from tonnage.sizing.plan import OnSearch

HELP: Final = """Compute replicas, max-num-seqs and cost for models. Needs no cluster.

Takes manifests (-f) or options. Prints replicas, latencies and cost at the demand; then, with
formulas and numbers: GPU memory, the bottleneck, what limits the batch size, the latencies, the
number of replicas, and the cost. If spec.model.config refers to a ConfigMap, or spec.scaleTarget to
a Deployment, pass its manifest too: config.json is read from the ConfigMap, engine version and
flags from the Deployment.

Until engines are measured, the operator assumes slow ones (speedRange) and, in mode Auto, up to
15 % more traffic (Headroom), so it may start more replicas with fewer sequences than plan prints.
With demand.peakPercent the replicas are those of the peak; costs per token and user are those of
the mean rate.

\b
Examples:
  tonnage plan --model meta-llama/Llama-3.1-8B-Instruct --gpu H100 --rps 4 \\
    --prompt 4000 --output 500 --ttft 2s --tpot 50ms       no file is needed
  tonnage plan -f model.yaml
  tonnage plan -f model.yaml --rps 40 --gpu L40S       the same, changed
  tonnage plan -f model.yaml --set model.kvCache=fp8   any field of it
  tonnage plan -f model.yaml --price H200=2.60         your own price
  tonnage plan -f model.yaml --model-config FILE       an uncatalogued model
  tonnage plan -f model.yaml --hub                     the same, fetched
  tonnage plan -f model.yaml --checkpoint DIR          exact weight sizes
  tonnage plan -f model.yaml --calibration FILE        measured constants
  tonnage plan -f model.yaml --disaggregated --kv-link 400Gb/s   cheaper?
  tonnage plan -f models/ -o json | jq '.[].plan.replicas'
  kubectl get mdep llama -o yaml | tonnage plan -f -

Exit codes: 0 all can be served; 2 one cannot (not at all, or not its demand within maxReplicas);
3 invalid input; 1 unexpected error.
"""
SEVERAL: Final = "plan takes one GPU class, not {}; 'tonnage compare' takes several"
NO_CLASS: Final = (
    "plan needs a GPU class: --gpu H100, for example; 'tonnage compare' ranks all of them"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What the command was given."""

    question: PlanInputOptions
    roles: RolesAsked
    form: str = output_option()
    calibration_file: Path | None = calibration_option()


@click.command(help=HELP)
@takes(PlanOptions)
def plan(*, options: PlanOptions) -> None:
    question, roles = options.question, options.roles
    roles.check(options.form)
    asked = asking(question, class_of(question))
    terms = terms_of(
        question,
        calibration=calibration_in(options.calibration_file),
        on_search=search_progress().counting(),
    )
    check_some(asked, question.names)
    around = beside(question)
    found = [answers_for(each, asked, terms, around) for each in asked.model_deployments]
    answers = [
        roles.answered(_finished(each, terms.on_search), terms.on_search)
        for some in found
        for each in some
    ]
    _print(answers, options.form)
    is_broken = bool(asked.problems) or not all(found)
    sys.exit(exit_code(answers, is_broken=is_broken))


def class_of(question: PlanInputOptions) -> str | None:
    """Return the one class that is named, if any.

    Raises:
        Failure: several are, or none where there is no manifest to name it.
    """
    names = question.gpu_names
    if len(names) > 1:
        raise Failure(SEVERAL.format(", ".join(names)))
    is_set = any("hardware" in each.partition("=")[0] for each in question.settings)
    if not (names or question.names or is_set) and question.model_id:
        raise Failure(NO_CLASS)
    return names[0] if names else None


def _finished(found: Planned | Refused, on_search: OnSearch) -> Planned | Refused:
    """Return an answer with what keeps the operator from running it, and what would cost less."""
    if isinstance(found, Refused):
        return found
    found = with_obstacle(found)
    for each in obstacles(found):
        remark(f"Note: {object_label(found)}: {each}")
    return with_savings(found, on_search)


def _print(answers: list[Planned | Refused], form: str) -> None:
    if form == "text":
        console = output()
        for number, each in enumerate(answers):
            if number:
                console.print()
            show(
                console,
                answer_report(each, is_ascii=console.options.ascii_only, width=console.width),
            )
        return
    for each in answers:
        if isinstance(each, Refused):
            print_error(f"{object_label(each)}: {each.message}")
    rows = [plan_row(each) for each in answers]
    click.echo(serialize([each.to_dict() for each in answers], form, rows=rows))
