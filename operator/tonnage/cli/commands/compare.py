"""``tonnage compare``: which GPU class serves a model for least. Needs no cluster."""

import sys
from dataclasses import dataclass, replace
from typing import Final

import click

from tonnage.catalog.gpu import CatalogError
from tonnage.cli.commands.options import output_option, page_option, takes
from tonnage.cli.commands.output_files import check_page, search_progress, single_model, write_page
from tonnage.cli.commands.plan_options import (
    PlanInputOptions,
    asking,
    beside,
    named_classes,
    terms_of,
)
from tonnage.cli.console import EXIT_INFEASIBLE, OK, Failure, output, print_error, serialize, show
from tonnage.cli.read.references import parsed_model
from tonnage.cli.results.comparing import Compared, compare_classes
from tonnage.cli.results.plan_summary import choice_row
from tonnage.cli.results.planning import code_of, request_of
from tonnage.cli.text.compare import comparison_report
from tonnage.manifests.target import RefusedError
from tonnage.sizing.errors import SizingError

HELP: Final = """Rank GPU classes for one model by cost. Needs no cluster.

Takes a manifest (-f) or options. For each class, the parallelism that plan takes is used: the one
that costs least and meets the SLO targets (offline: at maximum concurrency). Prints cost and
utilization of each at the demand; for the first ones also what plan prints, memory, and throughput
by batch size. Prices are yours, or on-demand prices of the catalogue, per GPU of the smallest
listed instance that fits a replica; classes without a price come last. maxReplicas is ignored:
classes that need more replicas are marked.

\b
Examples:
  tonnage compare --model meta-llama/Llama-3.1-8B-Instruct --rps 4 \\
    --prompt 4000 --output 500 --ttft 2s --tpot 50ms
  tonnage compare -f model.yaml                              all classes
  tonnage compare -f model.yaml --gpu H100,H200,L40S         only these
  tonnage compare -f model.yaml --prices FILE --rate spot    your prices
  tonnage compare -f model.yaml --html compare.html          a page
  tonnage compare -f model.yaml -o json | jq '.classes[0].plan'

Exit codes: 0 a class can serve it; 2 none can; 3 invalid input; 1 unexpected error.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    question: PlanInputOptions
    form: str = output_option()
    page_file: str | None = page_option()


@click.command(help=HELP)
@takes(CompareOptions)
def compare(*, options: CompareOptions) -> None:
    question, page_file = options.question, options.page_file
    check_page(page_file, options.form)
    terms = terms_of(question)
    named = named_classes(question.classes, terms.gpus) if question.classes else []
    gpus = named or list(terms.gpus.values())
    asked = asking(question, None if question.names else gpus[0].name)
    around, resource = beside(question), single_model(asked, question.names, command="compare")
    parsed = parsed_model(resource, asked)
    references, terms = around.of(parsed), replace(terms, guessed=resource.guessed)
    try:
        request = request_of(parsed.model.spec, terms, references)
    except (CatalogError, RefusedError, SizingError) as error:
        raise Failure(f"{resource.name}: {code_of(error)}: {error}") from error
    found = compare_classes(
        parsed.model,
        request,
        gpus,
        are_named=bool(named),
        is_written=bool(question.names),
        on_search=search_progress().counting(),
    )
    if page_file is not None:
        from tonnage.cli.page.pictures import compare_page  # noqa: PLC0415  (needs an extra)

        write_page(page_file, compare_page(found))
    if page_file != "-":
        _print(found, options.form)
    sys.exit(OK if found.selection.choices else EXIT_INFEASIBLE)


def _print(found: Compared, form: str) -> None:
    if form == "text":
        console = output()
        for part in comparison_report(found, console):
            show(console, part)
        return
    if not found.selection.choices:
        name = f"{found.deployment.namespace}/{found.deployment.name}"
        print_error(f"{name}: none of these classes can serve it")
    rows = [choice_row(number, each) for number, each in enumerate(found.selection.choices, 1)]
    click.echo(serialize(found.to_dict(), form, rows=rows))
