"""What runs today as text, beside what the demand takes."""

from collections.abc import Iterator, Mapping
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from tonnage.cli.results.today import MEANINGS, SAME, TODAY, Fleet
from tonnage.cli.text.layout import indent, section, table
from tonnage.sizing.plan import requests_per_s_asked
from tonnage.units import significant

COLUMNS: Final = ("replicas", "GPUs", "max-num-seqs", "sustain", "per month", "saves")


def today_report(fleets: Mapping[str, Fleet]) -> Iterator[RenderableType]:
    """Yield a row for what runs, for its flags at the demand, and for others."""
    today = fleets[TODAY]
    rows = table("with", numbers=COLUMNS)
    for name, each in fleets.items():
        cost, now = each.month.usd, today.month.usd
        saved = "" if name == TODAY or cost is None or now is None else f"{now - cost:,.0f}"
        rows.add_row(
            f"{MEANINGS[name]}, {each.sizing.parallelism}",
            str(each.replicas),
            str(each.replicas * each.gpus_per_replica),
            str(each.sizing.flags.max_num_seqs),
            f"{significant(each.sustained_requests_per_s)}/s",
            "no price" if cost is None else f"{cost:,.0f} {each.month.currency}",
            saved,
        )
    yield from section("What runs today, and what the demand takes", indent(rows))
    rate = requests_per_s_asked(today.sizing) or 0.0
    if today.replicas < fleets[SAME].replicas:
        sustained = significant(today.sustained_requests_per_s)
        short = f"What runs sustains {sustained} of the {significant(rate)} requests/s asked"
        yield indent(Text(short, style="yellow"))
