"""What the constants of forecast, headroom, reserve and holding would be without each family.

    python tests/bench/replay_left_out.py --traces FOLDER --out runs --page PAGE

Constants were chosen where the cases of the benchmark were seen. So each is given other values, one
at a time, and for each family of cases that value is taken which serves all other families best.
What that value does on the family that had no say is held against the value that ships. Runs are
files, as those of ``replay.py``, in a folder for each value.
"""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final, cast

import click
from bench_options import OUT, PAGE, PROCESSES, TRACES
from replay import told
from replay_cases import TARGET, Case, NoCaseError, chosen_cases, traces_in
from replay_runs import Draw, Job, Run, read, run_of, sources_digest, write

from tonnage.control.decide import outlook
from tonnage.estimate import forecast, headroom, holding
from tonnage.policy import need
from tonnage.replay.policies import DrawnScenario
from tonnage.replay.policy import TONNAGE
from tonnage.termination import process_pool

START_S: Final = 240.0
LEFT_OUT: Final = frozenset({"diurnal"})
"""A day takes as long to replay as all others, and its GPU-hours would outweigh them."""
MEANING = f"""\
# Replay: constants chosen without the family that they are judged on

Written by `tests/bench/replay_left_out.py`.

The cases are those of [the benchmark](replay.md) at cold starts of 4 minutes, one seed, without
the day. Each constant got other values, one at a time, all others as they ship. kept: cases
in which {TARGET:.0%} of the requests met TTFT and TPOT."""
RULE = """\
Best is who keeps most cases; of two that keep as many, who takes fewer GPU-hours. For each family
the value is the best of all in the table above, this constant or that, on the other families."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A constant, and where it is read."""

    name: str
    places: tuple[tuple[Mapping[str, Any], str], ...]
    values: tuple[Any, ...]
    """Tried beside the one that ships."""
    shown: Callable[[Any], object] = operator.pos

    @property
    def shipped(self) -> Any:
        variables, key = self.places[0]
        return variables[key]

    def set(self, value: Any) -> None:
        for variables, key in self.places:
            cast("dict[str, Any]", variables)[key] = value


def _of(module: object, key: str) -> tuple[Mapping[str, Any], str]:
    return vars(module), key


def _default(maker: type, key: str) -> tuple[Mapping[str, Any], str]:
    return cast("Any", maker).__init__.__kwdefaults__, key


def _rises(share: float, *, notes: float = 30.0) -> tuple[float, ...]:
    """Return first notes of headroom, one in ten of them that far above the plan."""
    found = [0.0] * (len(headroom.EDGES) + 1)
    found[0], found[headroom.EDGES.index(share)] = 0.9 * notes, 0.1 * notes
    return tuple(found)


def _first_headroom(rises: Sequence[float]) -> str:
    share = headroom.headroom(rises, quantile=TARGET)
    return f"{share:.0%}, as of {sum(rises):.0f} notes"


KNOBS: Final = (
    Knob(name="headroom before any record", places=(_default(forecast.History, "rises"),),
         values=(_rises(0.05, notes=10.0), _rises(0.1)), shown=_first_headroom),
    Knob(name="room above spec.demand", places=(_of(outlook, "UNSEEN"),), values=(0.05,)),
    Knob(name="late of what is above the plan", places=(_of(headroom, "LATE"),),
         values=(1 / 6, 2 / 3), shown=lambda share: f"{share:.2f}"),
    Knob(name="starts for which replicas are held",
         places=(_of(holding, "STARTS"), _of(outlook, "STARTS")),
         values=((2.0, 6.0, 12.0, 24.0), (6.0, 12.0, 18.0, 24.0)), shown=lambda starts: starts[0]),
    Knob(name="quantile of a forecast", places=(_of(forecast, "UNDER"),), values=(0.65, 0.9)),
    Knob(name="bursts from which on there is a reserve", places=(_of(forecast, "RECURS"),),
         values=(1,)),
    Knob(name="a burst, over what usually comes", places=(_of(forecast, "BURST"),),
         values=(1.25,)),
    Knob(name="drain of a start's backlog (s)", places=(_of(need, "DRAIN_S"),),
         values=(150.0, 600.0)),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Variant:
    """One constant at another value; without a knob all are as they ship. Each is itself alone."""

    knob: Knob | None = None
    value: Any = None

    def __str__(self) -> str:
        return f"{self.knob.name} {self.knob.shown(self.value)}" if self.knob else "as it ships"

    @property
    def folder(self) -> str:
        return "".join(letter if letter.isalnum() else "_" for letter in str(self))

    @contextmanager
    def applied(self) -> Iterator[None]:
        if self.knob is None:
            yield
            return
        shipped = self.knob.shipped
        self.knob.set(self.value)
        try:
            yield
        finally:
            self.knob.set(shipped)


SHIPPED: Final = Variant()
VARIANTS: Final = (
    SHIPPED, *(Variant(knob=knob, value=value) for knob in KNOBS for value in knob.values)
)  # fmt: skip
Figures = Mapping[Draw, Mapping[str, Any]]


def draws_in(traces: Path, only: Sequence[str]) -> list[Draw]:
    """Return the cases, one draw of chance for each.

    Raises:
        NoCaseError: the folder has none of the traces, or a name is unknown.
    """
    cases = [each for each in chosen_cases(traces_in(traces), only) if each.name not in LEFT_OUT]
    return [Draw(case=case, start_s=START_S, speed=1.0, seed=0) for case in cases]


def _written(folder: Path, number: int, draw: Draw, sources: str) -> Run:
    job = Job(draw=draw, policy=TONNAGE)
    with VARIANTS[number].applied():
        run = run_of(job, lambda: DrawnScenario.of(draw.scenario(), {}), sources)
    write(folder, job, run)
    return run


def all_figures(
    draws: Sequence[Draw], folder: Path, num_processes: int
) -> dict[Variant, dict[Draw, Mapping[str, Any]]]:
    """Run what has no file yet, and return the figures of each constant's values by case."""
    sources, found = sources_digest(), {}
    with process_pool(num_processes) as pool:
        asked = {}
        for number, variant in enumerate(VARIANTS):
            (own := folder / variant.folder).mkdir(parents=True, exist_ok=True)
            for draw in draws:
                run = read(own, Job(draw=draw, policy=TONNAGE))
                if run is None or run.error:
                    future = pool.submit(_written, own, number, draw, sources)
                    asked[future] = (variant, draw)
                else:
                    found[variant, draw] = run
        for future in as_completed(asked):
            variant, draw = asked[future]
            found[variant, draw] = future.result()
            click.echo(f"{variant}, {draw.case}, {draw.start_s:g} s: {told(future.result())}")
    return {
        variant: {
            draw: run.figures for draw in draws if (run := found[variant, draw]).figures is not None
        }
        for variant in VARIANTS
    }


def _of_families(figures: Figures, wanted: Callable[[Case], bool]) -> list[Mapping[str, Any]]:
    return [each for draw, each in figures.items() if wanted(draw.case)]


def _score(figures: Sequence[Mapping[str, Any]]) -> tuple[int, float]:
    """Return (cases missed, GPU-hours): the less the better."""
    missed = sum(each["attainment"] < TARGET for each in figures)
    return missed, sum(each["gpu_hours"] for each in figures)


def _cells(figures: Sequence[Mapping[str, Any]]) -> str:
    missed, gpu_hours = _score(figures)
    shares = [each["attainment"] for each in figures]
    return (
        f"{len(figures) - missed} of {len(figures)} | {fmean(shares):.2%} "
        f"| {min(shares):.1%} | {gpu_hours:.1f}"
    )


def page_of(found: Mapping[Variant, Figures]) -> str:
    """Return the page: each value over all cases, then what is chosen without each family."""
    heads = "kept | mean | worst | GPU-hours"
    rows = [f"| constant | {heads} |", f"|---|{'---|' * 4}"]
    rows += [f"| {name} | {_cells([*found[name].values()])} |" for name in VARIANTS]
    families = list(dict.fromkeys(draw.case.name for draw in found[SHIPPED]))
    without = [
        f"| family | chosen without it | {heads} | {heads}, as it ships |",
        f"|---|---|{'---|' * 8}",
    ]
    chosen: list[Mapping[str, Any]] = []
    shipped: list[Mapping[str, Any]] = []
    for family in families:
        best = min(
            VARIANTS,
            key=lambda name: _score(
                _of_families(found[name], lambda case, family=family: case.name != family)
            ),
        )
        one, other = (
            _of_families(found[name], lambda case, family=family: case.name == family)
            for name in (best, SHIPPED)
        )
        chosen += one
        shipped += other
        without.append(f"| {family} | {best} | {_cells(one)} | {_cells(other)} |")
    without.append(f"| all | | {_cells(chosen)} | {_cells(shipped)} |")
    parts = (
        MEANING, "## Each constant", "\n".join(rows), "## Without each family", RULE,
        "\n".join(without),
    )  # fmt: skip
    return "\n\n".join(parts) + "\n"


@click.command()
@TRACES
@OUT
@PAGE
@click.option("--case", "only", help="NAME,... instead of all.")
@PROCESSES
def main(
    *, traces: Path, folder: Path, page: Path | None, only: str | None, processes: int
) -> None:
    """Replay the cases with other constants, and choose them without each family in turn."""
    try:
        draws = draws_in(traces, only.split(",") if only else ())
    except NoCaseError as error:
        raise click.ClickException(str(error)) from error
    text = page_of(all_figures(draws, folder, processes))
    if page:
        page.write_text(text)
    click.echo(text)


if __name__ == "__main__":
    main()
