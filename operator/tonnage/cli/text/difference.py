"""A difference as Markdown, for the comments of a pull request."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from tonnage.cli.console import printable
from tonnage.cli.results.differing import (
    Difference,
    figures_of,
    hour_of,
    offload_of,
    total_cost,
)
from tonnage.cli.results.plan_summary import is_short
from tonnage.cli.results.planning import Planned, Refused
from tonnage.explain.demand_outcome import price_notes
from tonnage.manifests.changes import Change
from tonnage.units import count_of

ABSENT: Final = "-"
FIGURES: Final = ("replicas", "max-num-seqs", "USD/h")
ESCAPED: Final = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_[]<>|#&@!~"})
"""What Markdown would act on: manifests come from whoever opens a pull request."""


def markdown(found: Sequence[Difference], *, max_usd_per_hour: float | None) -> str:
    """Return a heading, a table of what changes, and the causes of each change."""
    changed = [each for each in found if each.kind != "same"]
    lines = [f"### Tonnage: {_headline(found, changed)}", ""]
    lines += [_budget(found, max_usd_per_hour), ""] if max_usd_per_hour is not None else []
    if changed:
        lines += [*_table(changed), "", *_prices(changed)]
    for each in changed:
        lines += _details(each)
    return "\n".join(lines).rstrip("\n")


def _headline(found: Sequence[Difference], changed: Sequence[Difference]) -> str:
    if not changed:
        return f"none of {count_of(len(found), 'ModelDeployment')} changes"
    rolled = sum(each.num_rolled for each in changed)
    before, after = _totals(found)
    return (
        f"{len(changed)} of {count_of(len(found), 'ModelDeployment')} "
        f"{'changes' if len(changed) == 1 else 'change'}, "
        f"{count_of(rolled, 'pod') if rolled else 'no pod'} "
        f"{'is' if rolled <= 1 else 'are'} replaced, {_before_after(before, after)} USD per hour"
    )


def _totals(found: Sequence[Difference]) -> tuple[str, str]:
    before, after = (
        total_cost(answers)
        for answers in ([each.before for each in found], [each.after for each in found])
    )
    return _usd(before), _usd(after)


def _usd(cost: float | None) -> str:
    return "?" if cost is None else f"{cost:.2f}"


def _prices(changed: Sequence[Difference]) -> Iterator[str]:
    hours = [
        (answer.sizing.request.gpu.name, hour)
        for each in changed
        for answer in (each.before, each.after)
        if isinstance(answer, Planned) and (hour := hour_of(answer))
    ]
    for note in price_notes(hours):
        yield from (printable(note).translate(ESCAPED), "")


def _budget(found: Sequence[Difference], most: float) -> str:
    cost = total_cost(each.after for each in found)
    if cost is None:
        why = "a price or a plan is missing"
        return f"**Over budget:** {why}, the budget is {most:.2f} USD per hour."
    if cost > most:
        return f"**Over budget:** {cost:.2f} of {most:.2f} USD per hour."
    return f"Within the budget of {most:.2f} USD per hour."


def _table(changed: Sequence[Difference]) -> Iterator[str]:
    sides = [(_cells(each.before), _cells(each.after)) for each in changed]
    named = {name for both in sides for side in both for name in side}
    columns = [*FIGURES, *sorted(named - {*FIGURES})]
    yield _row(["object", "", "pods replaced", *columns])
    yield _row([":--", ":--", "--:", *["--:"] * len(columns)])
    for each, (before, after) in zip(changed, sides, strict=True):
        figures = (
            _before_after(before.get(name, ABSENT), after.get(name, ABSENT)) for name in columns
        )
        rolled = f"**{each.num_rolled}**" if each.num_rolled else "0"
        yield _row([_text(each.name), each.kind, rolled, *figures])


def _cells(side: Planned | Refused | None) -> dict[str, str]:
    """Return the figures of one side; one that has no plan has none."""
    known = figures_of(side)
    if known is None or "refused" in known:
        return {}
    latencies = {
        name: f"{each['reached']} of {each['target']}" for name, each in known["latencies"].items()
    }
    figures = (str(known["replicas"]), str(known["maxNumSeqs"]), _usd(known["usdPerHour"]))
    return dict(zip(FIGURES, figures, strict=True)) | latencies


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _before_after(before: str, after: str) -> str:
    return after if before == after else f"{before} → {after}"


def _details(each: Difference) -> Iterator[str]:
    notes = list(_notes(each))
    if not (each.spec_changes or notes):
        return
    yield f"#### {_text(each.name)}"
    yield ""
    yield from notes
    yield from (f"- {_change(change)}" for change in each.spec_changes)
    yield ""
    if each.pod_changes:
        pods = count_of(each.num_rolled, "pod is", "pods are")
        because = f", because of {', '.join(map(_code, each.causes))}" if each.causes else ""
        yield f"{pods} replaced{because}:"
        yield ""
        yield from (f"- {_change(change)}" for change in each.pod_changes)
        yield ""


def _notes(each: Difference) -> Iterator[str]:
    after = each.after
    if isinstance(after, Refused):
        yield f"- **Cannot be served** ({_text(after.code)}): {_text(after.message)}"
    elif after is not None and is_short(after):
        most = after.replicas
        needed = count_of(after.sizing.replicas, "replica")
        yield f"- **Not enough:** {needed} are needed, {most} are allowed"
    if offload := offload_of(after):
        yield f"- KV offload: {_text(offload)}"


def _change(change: Change) -> str:
    before, after = change.before, change.after
    if before is None:
        return f"{_code(change.field)}: {_code(str(after))} (new)"
    if after is None:
        return f"{_code(change.field)}: {_code(before)} (removed)"
    return f"{_code(change.field)}: {_code(before)} → {_code(after)}"


def _code(text: str) -> str:
    """Return a code span, in which no character of the text means anything to Markdown."""
    text = printable(text)
    ticks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{ticks} {text} {ticks}" if "`" in text else f"`{text}`"


def _text(text: str) -> str:
    """Return a text of a manifest so that Markdown shows it as it stands."""
    return printable(text).translate(ESCAPED)
