"""As many questions as objects: do ticks keep their budget, and how long until all are planned?

    python tests/bench/fleet_distinct.py [--objects 1000] [--uncompiled 20] [--page]

New objects through the whole loop, a tick every 15 s of simulated time, with the time for searches
that the chart gives a tick; the API server is objects in memory. ``--uncompiled``: so many with the
engine model from its sources, as where nothing could be compiled.
"""

import importlib
from multiprocessing import get_context
from pathlib import Path

import click

PAGE = Path(__file__).with_suffix(".md")
TICK_S = 15
MINUTE_S = 60
HEAD = """# As many questions as objects

Written by `python tests/bench/fleet_distinct.py --page`, which says what runs. Nothing was made for
the objects and nothing is remembered; {budget:g} s of a tick go into searches, and a tick comes
every 15 s. Full picture: until each object has a plan. CPU: of all ticks, by the number of objects.
Wall time of ticks in seconds, on a machine that did nothing else.

| objects and questions | engine | ticks | full picture, min | mean tick | longest tick | CPU each |
| ---: | --- | ---: | ---: | ---: | ---: | ---: |
"""


def told(number: int, engine: str) -> tuple[float, str]:
    """Return the budget of a tick, and the row of one fleet."""
    if engine == "uncompiled":
        importlib.import_module("uncompiled").prefer_sources()
    found = importlib.import_module("fleet_distinct_world").measured(number)
    minutes = found["ticks"] * TICK_S / MINUTE_S
    row = (
        f"| {number} | {engine} | {found['ticks']} | {minutes:.1f} | {found['mean_s']:.1f} "
        f"| {found['longest_s']:.1f} | {found['cpu_s'] / number:.2f} |"
    )
    return found["budget_s"], row


@click.command()
@click.option("--objects", type=int, default=1000, show_default=True)
@click.option("--uncompiled", type=int, default=20, show_default=True)
@click.option("--page", is_flag=True, help="Write fleet_distinct.md.")
def main(objects: int, uncompiled: int, page: bool) -> None:
    fleets = [(objects, "compiled"), (uncompiled, "uncompiled")]
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        found = pool.starmap(told, fleets, chunksize=1)
    text = HEAD.format(budget=found[0][0]) + "\n".join(row for _, row in found) + "\n"
    click.echo(text)
    if page:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
