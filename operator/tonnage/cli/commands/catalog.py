"""``tonnage catalog``: the GPU classes and models that are known, with where figures come from."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from tonnage.catalog.cache_types import CACHE_TYPES
from tonnage.catalog.gpu import CatalogError, Gpu, smallest, sources
from tonnage.catalog.models import built_in_model, model_names, model_origin
from tonnage.catalog.parameters import num_active_parameters, num_parameters
from tonnage.catalog.shape import ModelShape
from tonnage.cli.commands.options import option, output_option, takes
from tonnage.cli.commands.prices import known_gpus
from tonnage.cli.console import NUMBER, Failure, output, serialize, show
from tonnage.cli.text.layout import fitting_table
from tonnage.sizing.cost import amount
from tonnage.sizing.parallelism.kv import kv_bytes_per_token
from tonnage.sizing.parallelism.shard import shard_of
from tonnage.sizing.split import Parallelism
from tonnage.units import GB, GIB, KIB, TERA, significant

MISSING: Final = "-"
MODEL_COLUMNS: Final = (
    "model", "parameters 1e9", "active 1e9", "layers", "weights", "weights GB", "KV KiB/token",
    "context", "certainty", "source",
)  # fmt: skip

HELP = """List the GPU classes and models in the catalogue, with their figures and sources.

\b
Examples:
  tonnage catalog gpus
  tonnage catalog gpus --sources
  tonnage catalog gpus --gpus my-classes/
  tonnage catalog models --match llama
  tonnage catalog models -o markdown
  tonnage catalog gpus -o json | jq '.[] | select(.GPU == "H100").sources'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """How a table is printed."""

    match: str = option("--match", default="", help="Only names that contain this text.")
    has_sources: bool = option("--sources", is_flag=True, help="Show sources in the text.")
    form: str = output_option()

    def named(self, known: Iterable[str]) -> list[str]:
        names = [name for name in known if self.match.casefold() in name.casefold()]
        if not names:
            raise Failure(f"no name has {self.match!r} in it")
        return names


@click.group(help=HELP)
def catalog() -> None:
    pass


@catalog.command()
@takes(TableOptions)
@click.option(
    "--gpus",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with TOML files of GPU classes, to add or to override.",
)
def gpus(*, options: TableOptions, folder: Path | None) -> None:
    """List GPU classes: memory as the driver reports it, dense peak FLOP/s, link speed one way."""
    known = known_gpus(folder)
    _print([_gpu_row(known[name]) for name in options.named(sorted(known))], options)


@catalog.command()
@takes(TableOptions)
def models(*, options: TableOptions) -> None:
    """List models; others are supported with their config.json."""
    rows = map(_model_row, options.named(model_names()))
    _print([dict(zip(MODEL_COLUMNS, row, strict=True)) for row in rows], options)


def _gpu_row(gpu: Gpu) -> dict[str, str]:
    peaks = (gpu.peak_flop_per_s.get(name) for name in ("bf16", "fp8", "fp4"))
    bf16, fp8, fp4 = (MISSING if peak is None else f"{peak / TERA:.0f}" for peak in peaks)
    rent, purchase = smallest(gpu.price.paid(), 1), gpu.price.purchase_usd
    keys = [source.key for source in gpu.sources]
    keys += [rent.source.key for rent in gpu.price.offered if rent.source]
    return {
        "GPU": gpu.name,
        "memory GiB": f"{gpu.memory_bytes / GIB:.1f}",
        "sold as GB": f"{gpu.nominal_memory_bytes / GB:.0f}",
        "TB/s": f"{gpu.memory_bytes_per_s / TERA:.3g}",
        "bf16 TFLOP/s": bf16,
        "fp8": fp8,
        "fp4": fp4,
        "link GB/s": f"{gpu.interconnect_bytes_per_s / GB:.0f}",
        "USD/hour": MISSING if rent is None else amount(rent.usd_per_gpu_hour),
        "price of": MISSING if rent is None else rent.basis,
        "USD": MISSING if purchase is None else f"{purchase:.0f}",
        "sources": ", ".join(dict.fromkeys(keys)),
    }


def _model_row(name: str) -> tuple[str, ...]:
    origin = model_origin(name)
    try:
        figures = _figures(built_in_model(name))
    except CatalogError as error:
        figures = (MISSING,) * 7
        return (name, *figures, origin.certainty, f"not sized: {error}")
    return (name, *figures, origin.certainty, origin.source)


def _figures(shape: ModelShape) -> tuple[str, ...]:
    cache_type = CACHE_TYPES[shape.kv_cache_format]
    whole = shard_of(shape, weights=shape.weight_format, parallelism=Parallelism())
    kv_bytes = kv_bytes_per_token(shape.attentions(), cache_type=cache_type)
    longest = shape.max_position_tokens
    return (
        significant(num_parameters(shape) / GB),
        significant(num_active_parameters(shape) / GB),
        str(shape.num_layers),
        shape.weight_format.described,
        significant(whole.weights_bytes / GB),
        f"{kv_bytes / KIB:g}",
        MISSING if longest is None else str(longest),
    )


def _print(cells: list[dict[str, str]], options: TableOptions) -> None:
    if options.form != "text":
        data = [{name: _value(name, cell) for name, cell in row.items()} for row in cells]
        click.echo(serialize(data, options.form, rows=cells))
        return
    first, *others, last = cells[0]
    names = [first, last] if options.has_sources else [first]
    heads = {"\n".join(name.rsplit(" ", 1)): name for name in (*names, *others)}
    shown = [{head: row[name] for head, name in heads.items()} for row in cells]
    console = output(is_wide=True)
    for part in fitting_table(shown, names=names, console=console):
        show(console, part)


def _value(name: str, cell: str) -> object:
    """Return a cell as data: figures as numbers, sources with their title and where they are."""
    if cell == MISSING:
        return None
    if name == "sources":
        return [
            {"key": key} | {name: sources()[key][name] for name in ("title", "where")}
            for key in cell.split(", ")
        ]
    if NUMBER.fullmatch(cell):
        return float(cell) if "." in cell else int(cell)
    return cell
