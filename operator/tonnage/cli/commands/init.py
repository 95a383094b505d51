"""``tonnage init``: the manifest of a line of options."""

import time
from typing import Any, Final

import click

from tonnage.cli.answers.manifest_words import commented
from tonnage.cli.answers.patience import counting
from tonnage.cli.answers.plan_words import headline
from tonnage.cli.answers.planning import Planned, Terms, answer
from tonnage.cli.commands.plan import class_of
from tonnage.cli.commands.question import (
    Asking,
    Beside,
    Question,
    asking,
    beside,
    question_options,
    terms_of,
)
from tonnage.cli.commands.writing import search_progress
from tonnage.cli.console import Failure, remark
from tonnage.cli.read.asked import MOST_REPLICAS
from tonnage.cli.read.manifest import parse
from tonnage.cli.read.strict_yaml import ManifestError

HEADROOM: Final = 2
"""Times the replicas of the plan, that the manifest allows."""
HELP: Final = """Print the manifest of a line of options, with comments.

Takes the options of plan. The number of replicas that it allows is twice what the plan takes.

\b
Examples:
  tonnage init --model meta-llama/Llama-3.1-8B-Instruct --gpu H100 --rps 4 \\
    --prompt 4000 --output 500 --ttft 2s --tpot 50ms > model.yaml
  tonnage plan -f model.yaml
  kubectl apply -f model.yaml

\b
Exit codes: 0 written; 3 invalid input; 1 unexpected error.
"""


@click.command(help=HELP)
@question_options
def init(*, question: Question) -> None:
    if question.names:
        raise Failure("init makes a manifest of options: it takes no -f")
    asked = asking(question, class_of(question))
    [(resource, guessed)] = asked.numbered
    progress = search_progress()
    terms = terms_of(
        question,
        guessed=guessed,
        between=counting(clock=time.monotonic, tell=progress.tell, begin=progress.begin),
    )
    content = dict(resource.content)
    spec: dict[str, Any] = dict(content["spec"])
    if spec["scaling"]["maxReplicas"] == MOST_REPLICAS:
        most = _most_replicas(asked, terms, beside(question))
        spec["scaling"] = {**spec["scaling"], "maxReplicas": most}
    click.echo(commented({**content, "spec": spec}, guessed))


def _most_replicas(asked: Asking, terms: Terms, beside: Beside) -> int:
    """Return what the manifest may allow: room over the plan, if there is one."""
    [(resource, _)] = asked.numbered
    try:
        deployment = parse(resource)
        config = beside.config_of(deployment, resource, asked.manifests)
    except ManifestError as error:
        raise Failure(str(error)) from error
    checkpoint = beside.checkpoint_of(deployment)
    found = answer(deployment, terms, model_config=config, checkpoint=checkpoint)
    if isinstance(found, Planned):
        remark(f"The plan: {headline(found)}")
        return min(MOST_REPLICAS, HEADROOM * found.replicas)
    if found.is_input:
        raise Failure(found.message)
    remark(f"Note: as it stands it cannot be served ({found.code}): {found.message}")
    return 1
