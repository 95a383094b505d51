"""``tonnage plan``: what it takes to serve the models of some manifests. Needs no cluster."""

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from tonnage.cli.answers.patience import counting
from tonnage.cli.answers.plan_words import exit_code, object_label, obstacles
from tonnage.cli.answers.planning import Planned, Refused, Terms, answer, with_savings
from tonnage.cli.answers.rendering import with_obstacle
from tonnage.cli.answers.rows import plan_row
from tonnage.cli.commands.beside_plan import BesidePlan, beside_plan_options
from tonnage.cli.commands.forms import serialize
from tonnage.cli.commands.options import (
    calibration_in,
    calibration_option,
    html_option,
    output_option,
)
from tonnage.cli.commands.question import (
    Beside,
    PlanInput,
    QuestionOptions,
    asking,
    beside,
    question_options,
    terms_of,
)
from tonnage.cli.commands.writing import (
    check_page,
    list_ignored,
    search_progress,
    write_page,
)
from tonnage.cli.console import Failure, ManifestError, complain, output, remark, show
from tonnage.cli.read.manifest import ManifestObject, parse
from tonnage.cli.read.references import target_of
from tonnage.cli.text.plan import answer_report, sources_of
from tonnage.explain.sources import citations
from tonnage.sizing.provenance import Figure

HELP: Final = """Compute replicas, max-num-seqs and cost for models. Needs no cluster.

Asked with manifests, or with a line of options. Prints what the replicas do with the demand and
what that costs; then, with formulas and numbers: whether the model fits into GPU memory, the
bottleneck, what limits the batch size, the latencies, the number of replicas, and the cost. If
spec.model.config refers to a ConfigMap, or spec.scaleTarget to a Deployment, pass its manifest too:
config.json is read from the ConfigMap, engine version and flags from the Deployment.

Engines are taken to be as fast as expected. The operator may begin with more replicas and
fewer sequences: until they are measured it plans for the slow end of what is believed (speedRange),
and in mode Auto, until traffic comes, for more of it than spec.demand tells (Headroom). A peak
(demand.peakPercent) is what a plan is for; its costs per token and user are of what usually comes.

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
  tonnage plan -f model.yaml --sources                 where figures are from
  tonnage plan -f model.yaml --roles-apart --kv-link 400Gb/s   roles apart?
  tonnage plan -f models/ --html plan.html             an HTML page
  tonnage plan -f models/ -o json | jq '.[].plan.replicas'
  kubectl get mdep llama -o yaml | tonnage plan -f -

Exit codes: 0 all can be served; 2 one cannot (not at all, or not its demand within maxReplicas);
3 invalid input; 1 unexpected error.
"""
SEVERAL: Final = "plan takes one GPU class, not {}; 'tonnage compare' takes several"
NO_CLASS: Final = (
    "plan needs a GPU class: --gpu H100, for example; 'tonnage compare' ranks all of them"
)


@click.command(help=HELP)
@question_options
@beside_plan_options
@output_option
@html_option
@calibration_option
@click.option(
    "--sources", "has_sources", is_flag=True, help="Say where every figure is taken from."
)
def plan(  # noqa: PLR0913  (one of each group of options)
    *,
    question: QuestionOptions,
    beside_plan: BesidePlan,
    form: str,
    page_file: str | None,
    calibration_file: Path | None,
    has_sources: bool,
) -> None:
    if question.textbook and calibration_file is not None:
        raise Failure("--textbook takes no --calibration: it has an efficiency of 1")
    beside_plan.check(form)
    check_page(page_file, form)
    asked = asking(question, class_of(question))
    progress = search_progress()
    terms = terms_of(
        question,
        calibration=calibration_in(calibration_file),
        between=counting(clock=time.monotonic, tell=progress.tell, begin=progress.begin),
    )
    for problem in asked.manifests.problems:
        complain(problem)
    list_ignored(asked.manifests.others)
    if not asked.with_guesses and not asked.manifests.problems:
        raise Failure(f"no ModelDeployment of tonnage.dev in {', '.join(question.names)}")
    answers = answers_of(asked, terms, beside(question))
    answers = [beside_plan.answered(each, terms.between) for each in answers]
    if page_file is not None and answers:
        from tonnage.cli.page.plan import plan_page  # noqa: PLC0415  (needs an extra)

        write_page(page_file, plan_page(answers))
    if page_file != "-":
        _print(answers, form, has_sources=has_sources)
    is_broken = bool(asked.manifests.problems) or len(answers) < len(asked.with_guesses)
    sys.exit(exit_code(answers, is_broken=is_broken))


def class_of(question: QuestionOptions) -> str | None:
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


def answers_of(asked: PlanInput, terms: Terms, beside: Beside) -> list[Planned | Refused]:
    """Return the answers for all objects that are valid; of the others it is said what is wrong."""
    found = (_answer(each, guessed, asked, terms, beside) for each, guessed in asked.with_guesses)
    return [each for each in found if each]


def _answer(
    resource: ManifestObject,
    guessed: frozenset[Figure],
    asked: PlanInput,
    terms: Terms,
    beside: Beside,
) -> Planned | Refused | None:
    try:
        deployment = parse(resource)
        config = beside.config_of(deployment, resource, asked.manifests)
        target = target_of(deployment, resource, asked.manifests)
    except ManifestError as error:
        complain(str(error))
        return None
    found = answer(
        deployment,
        replace(terms, guessed=guessed),
        model_config=config,
        target=target,
        checkpoint=beside.checkpoint_of(deployment),
    )
    if isinstance(found, Refused):
        return found
    found = with_obstacle(found)
    for each in obstacles(found):
        remark(f"Note: {object_label(found)}: {each}")
    return with_savings(found, terms.between)


def _print(answers: list[Planned | Refused], form: str, *, has_sources: bool) -> None:
    if form == "text":
        console = output()
        for number, each in enumerate(answers):
            if number:
                console.print()
            show(
                console,
                answer_report(each, is_ascii=console.options.ascii_only, width=console.width),
            )
            if has_sources and isinstance(each, Planned):
                show(console, sources_of(each))
        return
    for each in answers:
        if isinstance(each, Refused):
            complain(f"{object_label(each)}: {each.message}")
    rows = [plan_row(each) for each in answers]
    click.echo(
        serialize([_data(each, has_sources=has_sources) for each in answers], form, rows=rows)
    )


def _data(answer: Planned | Refused, *, has_sources: bool) -> dict[str, Any]:
    if not has_sources or isinstance(answer, Refused):
        return answer.to_dict()
    sources = [each.to_dict() for each in citations(answer.sizing.request)]
    return {**answer.to_dict(), "sources": sources}
