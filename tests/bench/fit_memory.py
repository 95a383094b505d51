"""Fit the constants of the memory budget on printed start-up logs, and write them as data.

    python tests/bench/fit_memory.py            shows what it would write
    python tests/bench/fit_memory.py --write    writes operator/tonnage/catalog/engines/memory.toml

Each constant is the median of what its rows say, taken over all versions in which the engine is
known to have done the same; its spread should hold nine of ten, the wider the fewer rows there are,
and is never below what a log rounds to. The rows stand beside the constants, in memory_rows.csv.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median_low, quantiles
from typing import Literal, NamedTuple

import click
from measured import read_csv

from tonnage.catalog.engine import MEMORY_FILE, Fitted, MemoryConstants
from tonnage.catalog.models import built_in_model
from tonnage.sizing.memory.budget import PAIR, activation_terms
from tonnage.sizing.request import Flags
from tonnage.sizing.split import Parallelism
from tonnage.units import GIB

ROWS_FILE = MEMORY_FILE.with_name("memory_rows.csv")
Row = Mapping[str, str]
Workspace = Literal["none", "in pass", "kept"]

ERAS = ("0.2", "0.8", "0.17", "0.18", "0.20")
"""First versions: the engine of before 0.8, the next one, another sampler kernel, larger buffers
between GPUs, CUDA graphs within the budget."""
WORKSPACE: Mapping[str, Workspace] = {
    "0.2": "none", "0.8": "in pass", "0.17": "kept", "0.18": "kept", "0.20": "kept",
}  # fmt: skip
GRAPHS_SINCE = "0.20"
SAMPLER_ERAS = {"0.2": "0.2", "0.8": "0.8", "0.17": "0.17", "0.18": "0.17", "0.20": "0.17"}
RUNTIME_ERAS = {"0.2": "0.2", "0.8": "0.8", "0.17": "0.8", "0.18": "0.18", "0.20": "0.18"}
LEAST_COPIES = {"0.2": 1.5, "0.8": 1.5, "0.17": 3.4, "0.18": 3.4, "0.20": 1.5}
"""Logits in 16 and in 32 bits: all that is left where top-k and top-p sort elsewhere or are not
run, as in the next model runner. In 0.17 to 0.19 all of nineteen logs have the sampler's peak."""
FORWARD_SHARE = 0.75
"""A peak of which the forward sum is more than this is a forward peak."""
LEAST_SPREAD_BYTES = 0.05 * GIB
LEAST_SAMPLER_SPREAD = 0.2
LEAST_FORWARD_SPREAD = 0.1
UNMEASURED = 1.0
"""Of a constant without a row of its own: as far off as it is large."""
ENOUGH = 19
"""Rows whose range misses the next one in one of ten cases."""
NVLINK_GPUS = ("H100", "H200", "B200", "A100", "V100")

NOTHING = Fitted(value=0.0, spread=0.0, num_rows=0)


class Sample(NamedTuple):
    """One measured value of a constant."""

    era: str
    value: float


def era_of(row: Row) -> str:
    """Return the first version of the era that a row belongs to."""
    if row["engine"] == "v0":
        return ERAS[0]
    minor = int(row["vllm_version"].partition(".")[2])
    return [era for era in ERAS if int(era.partition(".")[2]) <= minor][-1]


def activation_samples(rows: Iterable[Row]) -> tuple[list[Sample], list[Sample]]:
    """Return copies of the logits, and shares of the forward peak: whichever a row is bound by."""
    sampler, forward = [], []
    for row in rows:
        if not row["activation_gib"] or int(row["pipeline"]) > 1:
            continue
        era, peak = era_of(row), float(row["activation_gib"]) * GIB
        flags = Flags(
            max_num_seqs=int(row["max_num_seqs"]),
            max_num_batched_tokens=int(row["max_num_batched_tokens"]),
            gpu_memory_utilization=1.0,
            parallelism=Parallelism(tensor=int(row["tensor"])),
        )
        terms = activation_terms(built_in_model(row["model"]), flags, WORKSPACE[era])
        copies = (peak - terms.beside_sampler_bytes) / terms.logits_bytes
        share = peak / terms.forward_bytes
        is_forward = terms.forward_bytes > FORWARD_SHARE * peak
        target, value = (forward, share) if is_forward else (sampler, copies)
        target.append(Sample(era, value))
    return sampler, forward


def runtime_samples(rows: Iterable[Row], links: str) -> list[Sample]:
    return [
        Sample(era_of(row), float(row["runtime_gib"]) * GIB)
        for row in rows
        if row["runtime_gib"] and int(row["pipeline"]) == 1 and links_of(row) == links
    ]


def links_of(row: Row) -> str:
    """Name how the GPUs of a row are joined, which its runtime hangs on."""
    tensor = int(row["tensor"])
    if tensor == 1:
        return "alone"
    if not any(name in row["gpu"] for name in NVLINK_GPUS):
        return "pcie"
    return "pair" if tensor == PAIR else "many"


def fitted(samples: Sequence[Sample], *, least_spread: float) -> Fitted:
    """Return the median, and the distance from it that should hold nine of ten.

    The range of n rows misses the next one in two of n + 1 cases: of fewer than nineteen the
    farthest counts, stretched, but for that not to below nothing.
    """
    if not samples:
        return NOTHING
    values, number = [sample.value for sample in samples], len(samples)
    middle = median_low(values)
    away = [abs(value - middle) for value in values]
    spread = UNMEASURED * middle
    if number > 1:
        ninth = quantiles(away, n=10, method="inclusive")[-1]
        stretched = max(away) * (number + 1) / (number - 1) if number < ENOUGH else ninth
        spread = max(ninth, min(stretched, spread))
    return Fitted(value=middle, spread=max(least_spread, spread), num_rows=number)


def shared(samples: Sequence[Sample], eras: Mapping[str, str], era: str, least: float) -> Fitted:
    """Return the constant of an era: of its rows, else borrowed, with what borrowing may be off.

    That is the distance between eras of the same engine that have rows; of a single one nothing
    is known: all of it.
    """
    own = [sample for sample in samples if eras[sample.era] == eras[era]]
    if own or not samples:
        return fitted(own, least_spread=least)
    kin = [sample for sample in samples if (sample.era == ERAS[0]) == (era == ERAS[0])] or samples
    lent = fitted(kin, least_spread=least)
    by_era = defaultdict(list)
    for sample in kin:
        by_era[eras[sample.era]].append(sample.value)
    middles = [median_low(values) for values in by_era.values()]
    apart = max(middles) - min(middles) if len(middles) > 1 else UNMEASURED * lent.value
    return replace(lent, spread=max(lent.spread, apart))


def fit(rows: Sequence[Row]) -> tuple[MemoryConstants, ...]:
    """Return the constants of every era."""
    sampler, forward = activation_samples(rows)
    gib = [row["graphs_gib"] for row in rows if row["graphs_gib"]]
    graphs = [Sample(GRAPHS_SINCE, float(each) * GIB) for each in gib]
    alone, pair, many, pcie = (
        runtime_samples(rows, links) for links in ("alone", "pair", "many", "pcie")
    )

    return tuple(
        MemoryConstants(
            since=era,
            expert_workspace=WORKSPACE[era],
            least_sampler_copies=LEAST_COPIES[era],
            sampler_factor=shared(sampler, SAMPLER_ERAS, era, LEAST_SAMPLER_SPREAD),
            forward_factor=fitted(forward, least_spread=LEAST_FORWARD_SPREAD),
            runtime_bytes=shared(alone, RUNTIME_ERAS, era, LEAST_SPREAD_BYTES),
            runtime_nvlink_bytes=shared(pair, RUNTIME_ERAS, era, LEAST_SPREAD_BYTES),
            runtime_nvlink_many_bytes=shared(many, RUNTIME_ERAS, era, LEAST_SPREAD_BYTES),
            runtime_pcie_bytes=shared(pcie, RUNTIME_ERAS, era, LEAST_SPREAD_BYTES),
            graphs_bytes=fitted(graphs, least_spread=LEAST_SPREAD_BYTES)
            if era == GRAPHS_SINCE
            else NOTHING,
        )
        for era in ERAS
    )


def as_toml(constants: Sequence[MemoryConstants]) -> str:
    """Return the file that the catalogue reads."""
    names = [
        "sampler_factor", "forward_factor", "runtime_bytes", "runtime_nvlink_bytes",
        "runtime_nvlink_many_bytes", "runtime_pcie_bytes", "graphs_bytes",
    ]  # fmt: skip
    lines = [HEADER]
    for each in constants:
        lines += ["", "[[versions]]", f'since = "{each.since}"']
        lines.append(f'expert_workspace = "{each.expert_workspace}"')
        lines.append(f"least_sampler_copies = {each.least_sampler_copies}")
        for name in names:
            found: Fitted = getattr(each, name)
            digits = 0 if name.endswith("bytes") else 3
            lines.append(
                f"{name} = {{value = {found.value:.{digits}f}, spread = {found.spread:.{digits}f}, "
                f"num_rows = {found.num_rows}}}"
            )
    return "\n".join(lines) + "\n"


HEADER = """# What vLLM holds of a GPU beside weights and cache, by the first version of an era.
# Written by tests/bench/fit_memory.py from the rows in memory_rows.csv. Do not edit by hand.
# value: the median. spread: nine of ten rows should lie within it. num_rows: how many there were.
# A constant without rows in its era is taken from the rows of the same engine in other eras; its
# spread is at least the distance between eras, or all of it where only one has rows.
# Rows that end in -pool: what a printed pool leaves unexplained is taken for the runtime.

source = "kv-logs\""""


@click.command()
@click.option("--write", is_flag=True, help="Write the file of the catalogue.")
def main(*, write: bool) -> None:
    """Fit, and show or write the constants."""
    text = as_toml(fit(read_csv(ROWS_FILE)))
    if write:
        MEMORY_FILE.write_text(text)
    click.echo(text)


if __name__ == "__main__":
    main()
