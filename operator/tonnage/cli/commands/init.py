"""``tonnage init``: the manifest of a line of options, with what each part of it is for."""

from collections.abc import Mapping
from typing import Any, Final

import click
import yaml

from tonnage.api.objects import ModelDeployment
from tonnage.cli.commands.options import takes
from tonnage.cli.commands.output_files import search_progress
from tonnage.cli.commands.plan_options import PlanInputOptions, asking, beside, class_of, terms_of
from tonnage.cli.console import Failure, remark
from tonnage.cli.read.references import References, parsed_model
from tonnage.cli.read.spec_overrides import MOST_REPLICAS
from tonnage.cli.results.plan_summary import begin_written, headline, obstacles
from tonnage.cli.results.planning import PlanContext, Planned, answer
from tonnage.cli.results.rendering import with_obstacle
from tonnage.manifests.children import num_nodes_of
from tonnage.sizing.provenance import Figure
from tonnage.units import count_of

WIDE: Final = 200
"""Columns: no value is broken over lines."""
COMMENTS: Final[Mapping[str, str]] = {
    "model": "The model; weights and kvCache, such as fp8, may be set here too.",
    "hardware": "A class of 'tonnage catalog gpus'; without gpusPerReplica the cheapest is chosen.",
    "contextLength": "The maximum tokens of a request, prompt and output together.",
    "slo": "Latency targets: p50, p90, p95 or p99. Absent: offline.",
    "demand": "Expected traffic until it is measured; p99 may be set beside each mean.",
    "scaling": "Never unbounded. mode: Recommend creates nothing; Auto and Approve run it.",
    "engine": "The version of vLLM: flags, memory and metric names depend on it.",
}
IN_TIME: Final = (
    "inTime: engines answer 503 at once to requests whose first token would be late.",
    "all, the default: they wait, and in an overload those that come after them are late too.",
)
GUESSES: Final = {
    "contextLength": Figure.CONTEXT,
    "demand": Figure.LENGTHS,
    "engine": Figure.ENGINE,
}
HEADROOM: Final = 2
"""Times the replicas of the plan, that the manifest allows."""
HELP: Final = """Print a manifest for the given options, with comments.

Takes the options of plan. The parallelism is the plan's, and maxReplicas is twice the plan's
replicas, or what the operator begins with where that is more, at most 1000. With mode: Recommend it
creates nothing; change it to Auto or Approve to run it.

\b
Examples:
  tonnage init --model meta-llama/Llama-3.1-8B-Instruct --gpu H100 --rps 4 \\
    --prompt 4000 --output 500 --ttft 2s --tpot 50ms > model.yaml
  tonnage plan -f model.yaml
  kubectl apply -f model.yaml

Exit codes: 0 written; 3 invalid input; 1 unexpected error.
"""


@click.command(help=HELP)
@takes(PlanInputOptions, "question")
def init(*, question: PlanInputOptions) -> None:
    if question.names:
        raise Failure("init makes a manifest of options: it takes no -f")
    asked = asking(question, class_of(question))
    [resource] = asked.model_deployments
    guessed = resource.guessed
    counting = search_progress().counting()
    terms = terms_of(question, guessed=guessed, on_search=counting, is_advice=True)
    spec: dict[str, Any] = dict(resource.content["spec"])
    spec["scaling"] = {"mode": "Recommend"} | spec["scaling"]
    parsed = parsed_model(resource, asked)
    planned = _plan_or_failure(parsed.model, terms, beside(question).of(parsed))
    if planned:
        split = {"gpusPerReplica": planned.sizing.parallelism.num_gpus}
        spec["hardware"] = {**spec["hardware"], **split}
    if Figure.MAX_REPLICAS in guessed:
        spec["scaling"]["maxReplicas"] = _most_replicas(
            planned, spec["scaling"].get("minReplicas", 1)
        )
    if planned and planned.sizing.request.may_refuse:
        spec["engine"] = {"admission": "inTime"} | spec["engine"]
    for each in obstacles(planned) if planned else ():
        click.echo(f"# As it is {each}.")
    if planned and (num_nodes := num_nodes_of(planned.sizing)) > 1:
        nodes = count_of(num_nodes, "node")
        click.echo(f"# A replica takes {nodes}: the cluster must serve LeaderWorkerSets.")
    click.echo(with_comments({**resource.content, "spec": spec}, guessed))


def _most_replicas(planned: Planned | None, fewest: int) -> int:
    """Return what the manifest may allow: room over the plan, if there is one."""
    if planned is None:
        return fewest
    if planned.replicas > MOST_REPLICAS:
        raise Failure(
            f"the plan takes {count_of(planned.replicas, 'replica')}, of which one ModelDeployment "
            f"has at most {MOST_REPLICAS}: ask for a part of the demand, or for more GPUs of each "
            "with --set hardware.gpusPerReplica"
        )
    at_first = planned.begin.replicas if planned.begin else 0
    return min(MOST_REPLICAS, max(HEADROOM * planned.replicas, at_first))


def _plan_or_failure(
    deployment: ModelDeployment, terms: PlanContext, references: References
) -> Planned | None:
    found = answer(deployment, terms, references)
    if isinstance(found, Planned):
        found = with_obstacle(found)
        remark(f"The plan: {headline(found)}")
        if begin := begin_written(found):
            remark(f"It begins with {begin}")
        return found
    if found.is_input:
        raise Failure(found.message)
    remark(f"Note: as written it cannot be served ({found.code}): {found.message}")
    return None


def with_comments(content: Mapping[str, Any], guessed: frozenset[Figure]) -> str:
    """Return a manifest with a comment over each part of its spec; guesses are called so."""
    head = {key: value for key, value in content.items() if key != "spec"}
    lines = [*_yaml(head), "spec:"]
    for name, value in content["spec"].items():
        lines += [f"  # {COMMENTS[name]}"] if name in COMMENTS else []
        lines += ["  # A guess: nobody gave it."] if GUESSES.get(name) in guessed else []
        if name == "engine" and "admission" in value:
            lines += [f"  # {each}" for each in IN_TIME]
        lines += [f"  {line}" for line in _yaml({name: value})]
    return "\n".join(lines)


def _yaml(content: Mapping[str, Any]) -> list[str]:
    """Return the lines of a mapping; what is nested twice or more is written in braces."""
    lines: list[str] = []
    for key, value in content.items():
        text: str = yaml.safe_dump(
            {key: value},
            sort_keys=False,
            width=WIDE,
            default_flow_style=None if isinstance(value, dict | list) else False,
        )
        lines += text.splitlines()
    return lines
