"""The table of published figures, and what it says of GPUs and models as the product's types."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from builders import a_gpu
from golden.formulas import weight_bytes
from tonnage.catalog.cache_types import CACHE_TYPES
from tonnage.catalog.config.formats.quantization import BF16
from tonnage.catalog.gpu import Price
from tonnage.catalog.shape import DenseFfn, GroupedAttention
from tonnage.sizing.parallelism.kernels import layer_kernels
from tonnage.sizing.parallelism.kv import KvShare, flop_per_pair, kv_bytes_per_token
from tonnage.sizing.parallelism.shard import FLOP_PER_PARAMETER, Shard
from tonnage.sizing.split import Parallelism, on_rank
from tonnage.sizing.step_time.speeds import Speeds
from tonnage.units import GB, PETA, TERA

TABLE = yaml.safe_load((Path(__file__).parent / "seed_numbers.yaml").read_text())
ROWS = {row["id"]: row for row in TABLE["rows"]}

CALCULATIONS = {}
"""Row id -> the function that computes our value of it."""

ELEMENT_BYTES = {"fp16": 2, "fp8": 1, "int8": 1, "int4": 0.5, "fp4": 0.5}
_PEAK_COLUMNS = {
    "fp16_tflops": ("bf16", TERA),
    "bf16_tflops_sparse": ("bf16", TERA / 2),
    "fp8_tflops": ("fp8", TERA),
    "int8_tops": ("int8", TERA),
    "fp4_pflops": ("fp4", PETA),
}


def row(row_id):
    """Register a function as the calculation behind a row."""

    def register(calculation: Callable) -> Callable:
        CALCULATIONS[row_id] = calculation
        return calculation

    return register


def gpu(name):
    """Return a GPU class with the figures that the documents state for it."""
    stated = TABLE["gpus"][name]
    peaks = {
        precision: stated[column] * scale
        for column, (precision, scale) in _PEAK_COLUMNS.items()
        if column in stated
    }
    return a_gpu(
        name=name,
        memory_bytes=stated["vram_gb"] * GB,
        nominal_memory_bytes=stated["vram_gb"] * GB,
        memory_bytes_per_s=stated["bandwidth_tb_s"] * TERA,
        peak_flop_per_s=peaks,
        interconnect_bytes_per_s=stated.get("nvlink_gb_s", 64) * GB / 2,  # of both directions
        price=Price(
            rent_usd_per_hour=stated.get("usd_per_hour"), purchase_usd=stated.get("list_usd")
        ),
    )


def nominal_speeds(name, precision="fp16"):
    """Return what the documents compute with: nominal figures, nothing lost between GPUs."""
    figures = gpu(name)
    precision = {"fp16": "bf16"}.get(precision, precision)
    return Speeds(
        memory_bytes_per_s=figures.memory_bytes_per_s,
        peak_flop_per_s=figures.flop_per_s(precision),
    )


CACHE_OF = {1: CACHE_TYPES["fp8"], 2: CACHE_TYPES["bf16"]}
"""By bytes of an element."""


@dataclass(frozen=True, kw_only=True)
class Totals:
    """A model as the documents know it: how many parameters, and its attention."""

    params: float
    layers: int
    attention: GroupedAttention

    def kv(self, *, element_bytes=2, tensor=1, pipeline=1):
        """Return the cache of one rank of one stage."""
        stage = [(self.layers / pipeline, on_rank(self.attention, tensor))]
        work = self.layers * flop_per_pair(self.attention) / tensor / pipeline
        return KvShare(
            bytes_per_token=kv_bytes_per_token(stage, cache_type=CACHE_OF[element_bytes]),
            flop_per_pair=work,
        )


def model(name):
    """Return a model of the documents."""
    stated = TABLE["models"][name]
    attention = GroupedAttention(
        num_heads=stated["query_heads"],
        num_kv_heads=stated["kv_heads"],
        head_dim=stated["head_dim"],
    )
    return Totals(params=stated["params"], layers=stated["layers"], attention=attention)


def napkin_shard(totals, *, precision, kv_element_bytes=2, tensor=1, pipeline=1):
    """Return one rank's even share of a model, all of whose parameters are read in every step."""
    share = totals.params / tensor / pipeline
    kernels = layer_kernels(totals.attention, DenseFfn(intermediate_size=1), BF16)
    read_bytes = weight_bytes(num_parameters=share, bytes_per_parameter=ELEMENT_BYTES[precision])
    return Shard(
        weights_bytes=read_bytes,
        dense_read_bytes=read_bytes,
        kv=(totals.kv(element_bytes=kv_element_bytes, tensor=tensor, pipeline=pipeline),),
        flop_per_token=FLOP_PER_PARAMETER * share,
        num_layers=totals.layers // pipeline,
        num_kernels=totals.layers // pipeline * kernels.total,
        hidden_size=totals.attention.num_heads * totals.attention.head_dim,
        parallelism=Parallelism(tensor=tensor, pipeline=pipeline),
    )
