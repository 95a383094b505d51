"""A plan, or a reasoned no, as text for a person."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from tonnage.api.spec import Spec
from tonnage.api.status import Reason
from tonnage.cli.console import printable
from tonnage.cli.plan_figures import DIM, batch_table, memory_bar
from tonnage.cli.planning import Offer, Planned, Refused
from tonnage.explain.report import usd_per_hour
from tonnage.explain.words import Answer, explain, inputs
from tonnage.sizing.plan import Sizing
from tonnage.sizing.request import Flags
from tonnage.units import format_s

INDENT = 3
BOUNDS = frozenset({"MaxReplicas", "MinReplicas"})
OFFER_NUMBERS = ("GPUs", "max-num-seqs", "TPOT", "USD/hour")
ORIGIN_STYLE = {"given": "", "looked up": "", "guessed": "yellow", "measured": "green"}


def planned(answer: Planned, *, is_ascii: bool = False) -> RenderableType:
    """Return the whole answer: headline, questions in order, inputs, plan."""
    sizing = answer.sizing
    figures: dict[int, RenderableType] = {
        0: memory_bar(sizing, is_ascii=is_ascii),
        2: batch_table(sizing),
    }
    parts: list[RenderableType] = [_title(answer), headline(answer)]
    for number, each in enumerate(answers(answer)):
        parts += [Text(), *_question(number + 1, each, figures.get(number))]
    parts += [Text(), Text("What it stands on", style="bold"), _inputs(sizing)]
    parts += [Text(), Text("Plan", style="bold"), _summary(answer)]
    return Group(*parts)


def answers(answer: Planned) -> tuple[Answer, ...]:
    """Return the questions; replicas and cost are answered within the bounds of the spec."""
    *earlier, replicas, _ = explain(answer.sizing)
    *_, cost = explain(replace(answer.sizing, replicas=answer.replicas))
    bounds = [each.message for each in answer.reasons if each.code in BOUNDS]
    if bounds:
        replicas = replace(replicas, answer="; ".join([replicas.answer, *bounds]))
    return (*earlier, replicas, cost)


def _title(answer: Planned | Refused) -> RenderableType:
    deployment = answer.deployment
    name = f"{deployment.namespace}/{deployment.name}"
    title = Text(f"{name}: {subject(answer)}", style="bold")
    return Rule(title, align="left", style=DIM)


def subject(answer: Planned | Refused) -> str:
    """Return what is asked about: the model and the GPU class."""
    spec: Spec = answer.deployment.spec
    return f"{spec.model.id} on {spec.hardware.gpu}"


def headline(answer: Planned) -> Text:
    """Return the answer in a line: replicas, GPUs, slots, price."""
    sizing, num_gpus = answer.sizing, answer.sizing.flags.parallelism.num_gpus
    each = f" of {num_gpus} GPUs ({sizing.flags.parallelism})" if num_gpus > 1 else ""
    usd = usd_per_hour(sizing, answer.replicas)
    price = "" if usd is None else f", {usd:.2f} USD per hour"
    line = (
        f"{counted(answer.replicas, 'replica')}{each} on {sizing.request.gpu.name}, "
        f"max-num-seqs {sizing.flags.max_num_seqs}{price}"
    )
    if answer.replicas < sizing.replicas:
        return Text(f"{line}; {sizing.replicas} replicas are needed", style="yellow")
    return Text(line, style="green")


def counted(number: int, noun: str) -> str:
    """Write a number of things.

    >>> counted(1, "replica"), counted(2, "replica")
    ('1 replica', '2 replicas')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _question(
    number: int, answer: Answer, figure: RenderableType | None
) -> Iterator[RenderableType]:
    yield Text(f"{number}. {answer.question}", style="bold")
    yield Padding(Text(answer.answer), (0, 0, 0, INDENT), expand=False)
    if answer.lines:
        yield Padding(_bulleted(answer.lines), (0, 0, 0, INDENT), expand=False)
    if figure is not None:
        yield Padding(figure, (1, 0, 0, INDENT), expand=False)


def _bulleted(lines: Iterable[str]) -> Table:
    """Return lines whose continuation hangs below their first word."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    for line in lines:
        grid.add_row(Text("-", style=DIM), Text(line, style=DIM))
    return grid


def _inputs(sizing: Sizing) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, value, origin in inputs(sizing):
        grid.add_row(name, value, Text(origin, style=ORIGIN_STYLE.get(origin, "")))
    return Padding(grid, (0, 0, 0, INDENT), expand=False)


def summary(answer: Planned) -> dict[str, str]:
    """Return what is to be run, and what limits it."""
    flags, split = answer.sizing.flags, answer.sizing.flags.parallelism
    each = f"{split}, {counted(split.num_gpus, 'GPU')} per replica"
    return {
        "replicas": str(answer.replicas),
        "GPUs": f"{answer.replicas * split.num_gpus} ({each})",
        "max-num-seqs": f"{flags.max_num_seqs}{_ranks(flags)}",
        "max-num-batched-tokens": str(flags.max_num_batched_tokens),
        "gpu-memory-utilization": f"{flags.gpu_memory_utilization:g}",
        "limited by": answer.sizing.line.limited_by,
    }


def _summary(answer: Planned) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, value in summary(answer).items():
        grid.add_row(name, value)
    for reason in answer.reasons:
        grid.add_row(*_reason(reason))
    return Padding(grid, (0, 0, 0, INDENT), expand=False)


def _ranks(flags: Flags) -> str:
    num_ranks = flags.parallelism.data
    total = flags.max_num_seqs * num_ranks
    return f" per data-parallel rank, {total} in all" if num_ranks > 1 else ""


def _reason(reason: Reason) -> tuple[Text, Text]:
    style = "yellow" if reason.code == "MaxReplicas" else ""
    return Text(reason.code, style=style), Text(reason.message, style=style)


def refused(answer: Refused) -> RenderableType:
    """Return the no: why, with the numbers, and what would make it a yes."""
    message = Text(f"No ({answer.code}): {printable(answer.message)}", style="red")
    parts: list[RenderableType] = [_title(answer), message]
    if answer.offers:
        parts += [Text(), Text("Ways out, the cheapest first", style="bold")]
        parts.append(Padding(_offers(answer.offers), (0, 0, 0, INDENT), expand=False))
    return Group(*parts)


def _offers(offers: Iterable[Offer]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column("change in the spec")
    for name in OFFER_NUMBERS:
        table.add_column(name, justify="right", no_wrap=True)
    for offer in offers:
        table.add_row("\n".join(offer.changes), *offer_numbers(offer))
    return table


def offer_numbers(offer: Offer) -> tuple[str, ...]:
    """Return what a way out takes: GPUs, slots, time per token, price."""
    sizing = offer.sizing
    usd = usd_per_hour(sizing, sizing.replicas)
    return (
        f"{sizing.replicas} x {sizing.flags.parallelism.num_gpus}",
        str(sizing.flags.max_num_seqs),
        format_s(sizing.at_capacity.tpot_s),
        "no price" if usd is None else f"{usd:.2f}",
    )


def answered(answer: Planned | Refused, *, is_ascii: bool = False) -> RenderableType:
    """Return one answer, whatever it is."""
    return planned(answer, is_ascii=is_ascii) if isinstance(answer, Planned) else refused(answer)
