"""GPU classes compared, as text for a person: the ranking, then the stages of each class."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from tonnage.catalog.engine_speed import speed_spread
from tonnage.cli.comparing import Compared
from tonnage.cli.console import printable
from tonnage.cli.plan_figures import BOUNDS, DIM, batch_table
from tonnage.cli.plan_text import INDENT, counted
from tonnage.explain.report import bottleneck
from tonnage.explain.stages import stages
from tonnage.explain.validation import Unconfirmed, unconfirmed
from tonnage.sizing.compare import Choice, RefusedClass
from tonnage.sizing.plan import requests_per_s_asked
from tonnage.sizing.serving.ttft import typical_ttft_s
from tonnage.units import format_s, significant

WORDS: Final = frozenset({"class", "split", "bound by"})
"""Columns of words; the others are numbers."""
CLASS: Final = "class"
TAKES: Final = (
    "split", "replicas", "GPUs", "max-num-\nseqs", "USD per\nhour", "USD per\nM tokens",
)  # fmt: skip
GIVES: Final = ("TPOT", "TTFT", "tokens/s\nreplica", "tokens/s\nGPU", "bound by")
RANKING: Final = (
    *TAKES[:4], *GIVES, *TAKES[4:],
)  # fmt: skip
"""In the order of the question: what runs, how fast that is, what it costs."""
UNKNOWN: Final = "-"
BEYOND: Final = "*"


def compared(found: Compared, console: Console) -> Iterator[RenderableType]:
    """Yield the parts of the answer, as wide as the console."""
    yield _title(found)
    yield headline(found)
    yield Text(as_written(found))
    if found.selection.choices:
        yield Text()
        yield Text(ranked_by(found), style="bold")
        yield from (_indented(table) for table in _ranking(found, console))
        yield from (_indented(Text(note, style=DIM)) for note in notes(found))
    if found.selection.refused:
        yield Group(Text(), Text("Refused", style="bold"), _indented(_refused(found)))
    for choice in found.in_full:
        yield Group(Text(), *_class(found, choice))
    yield from _validation(found)


def _title(found: Compared) -> RenderableType:
    deployment, selection = found.deployment, found.selection
    number = len(selection.choices) + len(selection.refused)
    classes = "1 GPU class" if number == 1 else f"{number} GPU classes"
    name = f"{deployment.namespace}/{deployment.name}: {deployment.spec.model.id} on {classes}"
    return Rule(Text(name, style="bold"), align="left", style=DIM)


def headline(found: Compared) -> Text:
    """Return the answer in a line: the first class of the ranking."""
    if not found.selection.choices:
        return Text("No: none of these classes can serve it", style="red")
    first = found.selection.choices[0]
    what = "costs least" if first.bill else "takes the fewest GPUs; no price is known"
    return Text(f"{first.gpu.name} {what}: {in_short(first)}", style="green")


def in_short(choice: Choice) -> str:
    """Return what runs and what it costs, in a line."""
    split = choice.sizing.flags.parallelism
    gpus = f"{counted(choice.replicas, 'replica')} of {counted(split.num_gpus, 'GPU')} ({split})"
    found = choice.bill
    if found is None:
        return gpus
    return (
        f"{gpus}, {found.usd_per_hour:.2f} USD per hour, {found.usd_per_million_tokens:.2f} USD "
        "per million output tokens"
    )


def as_written(found: Compared) -> str:
    """Return what the manifest's own class and split would do, and its place in the ranking."""
    own = found.as_written
    if isinstance(own, RefusedClass):
        return f"As the manifest stands, {own.gpu.name} will not do: {printable(own.message)}"
    same = next((each for each in found.selection.choices if each.gpu == own.gpu), None)
    if same is None:
        return f"As the manifest stands, {own.gpu.name}: {in_short(own)}"
    place = f"rank {found.selection.choices.index(same) + 1}"
    if in_short(same) == in_short(own):
        return f"As the manifest stands, {own.gpu.name}: {place}, just as below"
    return (
        f"As the manifest stands, {own.gpu.name}: {in_short(own)}; {place} is the same class with "
        "its best split"
    )


def ranked_by(found: Compared) -> str:
    """Say what the order stands for."""
    aim = "offline, at the memory ceiling" if found.is_offline else "within the SLO"
    if requests_per_s_asked(found.selection.choices[0].sizing) is None:
        return f"By USD per million output tokens {aim}; no demand is given"
    return f"By USD per hour for the demand, {aim}"


def notes(found: Compared) -> Iterator[str]:
    """Yield what must be known to read the ranking."""
    choices = found.selection.choices
    if not all(choice.is_within_bounds for choice in choices):
        yield f"{BEYOND} more replicas than maxReplicas {found.request.max_replicas} allows"
    if not all(choice.bill for choice in choices):
        yield "classes without a price stand after those with one, by number of GPUs"
    if names := too_close(found):
        yield (
            f"{', '.join(names)}: closer than the estimate of their speed is sure; a measurement "
            "may change their order"
        )
    if len(found.in_full) < len(choices):
        yield "in full below: the cheapest and the manifest's own; --gpu NAME,NAME shows others"


def too_close(found: Compared) -> list[str]:
    """Return the classes that cost little more than the first, where there are such."""
    first, *others = found.selection.choices
    cheapest = first.bill
    if cheapest is None or found.request.is_textbook:
        return []
    names = [
        other.gpu.name
        for other in others
        if other.bill
        and other.bill.usd_per_hour
        < cheapest.usd_per_hour * (1 + max(speed_spread(first.gpu), speed_spread(other.gpu)))
    ]
    return [first.gpu.name, *names] if names else []


def _ranking(found: Compared, console: Console) -> Iterator[RenderableType]:
    """Yield one table where there is room for it, else one of what it takes and one of speed."""
    rows = [
        dict(row_cells(number + 1, choice)) for number, choice in enumerate(found.selection.choices)
    ]
    whole = _table(RANKING, rows)
    if console.measure(whole).maximum + INDENT <= console.width:
        yield whole
        return
    yield _table(TAKES, rows)
    yield Padding(_table(GIVES, rows), (1, 0, 0, 0))


def _table(columns: Sequence[str], rows: Iterable[dict[str, str]]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        header_style="bold",
    )
    for name in ("#", CLASS, *columns):
        table.add_column(name, justify="left" if name in WORDS else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(row[name] for name in ("#", CLASS, *columns)))
    return table


def row_cells(number: int, choice: Choice) -> Iterator[tuple[str, str]]:
    """Yield (column, cell) of a row of the ranking."""
    sizing, state, found = choice.sizing, choice.sizing.at_capacity, choice.bill
    is_offline = sizing.request.slo.is_offline
    first_s = typical_ttft_s(sizing.replica, sizing.request.workload, state)
    yield "#", str(number)
    yield CLASS, choice.gpu.name
    yield "split", str(sizing.flags.parallelism)
    yield "replicas", f"{choice.replicas}{'' if choice.is_within_bounds else BEYOND}"
    yield "GPUs", str(choice.num_gpus)
    yield "max-num-\nseqs", str(sizing.flags.max_num_seqs)
    yield "TPOT", format_s(state.tpot_s)
    yield "TTFT", UNKNOWN if is_offline else format_s(first_s)
    yield "tokens/s\nreplica", significant(sizing.output_tokens_per_s)
    yield "tokens/s\nGPU", significant(choice.tokens_per_s_per_gpu)
    yield "bound by", BOUNDS[bottleneck(sizing)]
    yield "USD per\nhour", f"{found.usd_per_hour:.2f}" if found else UNKNOWN
    yield "USD per\nM tokens", f"{found.usd_per_million_tokens:.2f}" if found else UNKNOWN


def _refused(found: Compared) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for each in found.selection.refused:
        why = printable(each.message).partition(";")[0]
        grid.add_row(each.gpu.name, Text(why, style=DIM))
    return grid


def _class(found: Compared, choice: Choice) -> Iterator[RenderableType]:
    number = found.selection.choices.index(choice) + 1
    yield Text(f"{number}. {choice.gpu.name}: {in_short(choice)}", style="bold")
    yield _indented(Text(to_write(choice)))
    grid = Table.grid(padding=(0, 2, 0, 0))
    for stage, said in class_stages(found, choice):
        grid.add_row(Text(stage), Text(said, style=DIM))
    yield _indented(grid)
    yield Padding(batch_table(choice.sizing), (1, 0, 0, INDENT), expand=False)


def to_write(choice: Choice) -> str:
    """Return what the manifest has to say for this choice."""
    num_gpus = choice.sizing.flags.parallelism.num_gpus
    return f"spec.hardware: {{gpu: {choice.gpu.name}, gpusPerReplica: {num_gpus}}}"


def class_stages(found: Compared, choice: Choice) -> Iterator[tuple[str, str]]:
    """Yield (stage, figures in words); of what is to be validated only what others do not share."""
    *earlier, last = stages(choice)
    yield from ((stage.name, str(stage)) for stage in earlier)
    own = [each for each in unconfirmed(choice.sizing) if each not in in_common(found)]
    said = "; ".join(f"{each.name}: {each.value}" for each in own)
    yield last.name, said or "as for every class, below"


def in_common(found: Compared) -> tuple[Unconfirmed, ...]:
    """Return what must be validated for every class that is shown in full, in the same words."""
    first, *others = [unconfirmed(choice.sizing) for choice in found.in_full]
    return tuple(each for each in first if all(each in other for other in others))


def _validation(found: Compared) -> Iterator[RenderableType]:
    """Yield what only a measurement can confirm, and how."""
    if not found.in_full:
        return
    yield Group(Text(), Text("To be validated by measurement, for every class", style="bold"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for name in ("figure", "value", "origin", "confirmed by"):
        table.add_column(name)
    for each in validated(found):
        table.add_row(each.name, each.value, each.origin, each.confirmed_by)
    yield _indented(table)


def validated(found: Compared) -> Iterator[Unconfirmed]:
    """Yield every unconfirmed figure once; where classes differ, without its value."""
    common = in_common(found)
    seen: set[str] = set()
    for choice in found.in_full:
        for each in unconfirmed(choice.sizing):
            name = each.name.replace(choice.gpu.name, "class").strip()
            if name not in seen:
                seen.add(name)
                value = each.value if each in common else "differs"
                yield Unconfirmed(
                    name=name, value=value, origin=each.origin, confirmed_by=each.confirmed_by
                )


def _indented(content: RenderableType) -> Padding:
    return Padding(content, (0, 0, 0, INDENT), expand=False)
