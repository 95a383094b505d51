"""What physics and kernel tables say of the constants of a step, before serving is looked at."""

from collections.abc import Mapping

from tonnage.catalog.engine_speed import CutlassExperts, ExpertsPrefill


def _rate(precision: str, efficiency: float, half_width: float) -> ExpertsPrefill:
    return ExpertsPrefill(precision=precision, efficiency=efficiency, half_width=half_width)


BANDWIDTH: Mapping[str, Mapping[str, float]] = {
    "ampere": {"bf16": 0.76, "other": 0.76},
    "hopper": {"bf16": 0.86, "fp8": 0.82, "fp8-block": 0.84, "other": 0.86},
    "blackwell": {"bf16": 0.82, "fp8": 0.75, "fp8-block": 0.87, "nvfp4": 0.66, "other": 0.82},
    "ada": {"bf16": 0.79, "fp8": 0.70, "fp8-block": 0.77, "other": 0.79},
    "blackwell-rtx": {"bf16": 0.93, "fp8": 0.90, "fp8-block": 0.92, "nvfp4": 0.66, "other": 0.93},
    "gddr": {"bf16": 0.86, "other": 0.86},
    "other": {"other": 0.82},
}  # fmt: skip
"""Of products of up to 128 rows and a million weights or more: A100; H100 and H200; B200 and B300;
L40S; RTX PRO 6000. Other boards with GDDR memory are taken as the mean of the latter two."""
CACHE_BANDWIDTH: Mapping[str, Mapping[str, float]] = {
    "ampere": {"bf16": 0.74},
    "hopper": {"bf16": 0.90, "fp8": 0.70},
    "blackwell": {"bf16": 0.90, "fp8": 0.90},
    "ada": {"bf16": 0.82, "fp8": 0.80},
    "blackwell-rtx": {"bf16": 0.94, "fp8": 0.94},
}
"""Of attention to 128-wide heads. A cache of 8 bits is unpacked on Hopper at about 3 TB/s."""
CACHED_HEAD_S = {"ampere": 27e-9, "hopper": 25e-9, "blackwell": 9.5e-9, "ada": 26e-9,
                 "blackwell-rtx": 16e-9, "other": 25e-9}  # fmt: skip
"""What attention takes for each sequence and KV head beside its reads."""
SEQUENCES_MEASURED = 512.0
"""The largest batch of a rank. Beyond it the time per sequence is not known: reports of 1,300 to
1,600 sequences have steps of about half of what a line through the smaller ones gives."""
PRIORS: Mapping[str, tuple[float, float]] = {
    "per_step_s.async": (0.2e-3, 0.7),
    "per_step_s.sync": (1e-3, 0.4),
    "per_kernel_s": (2.1e-6, 0.03),
    "per_sequence_s.first": (25e-6, 0.6),
    "compute_efficiency": (0.6, 0.25),
    "experts_served_share": (0.8, 0.2),
    "routing_evenness": (2.0, 1.0),
    **{
        f"bandwidth_efficiency.{generation}.{name}": (BANDWIDTH[generation][name], 0.03)
        for generation, name in (
            ("ampere", "bf16"), ("hopper", "bf16"), ("hopper", "fp8"), ("hopper", "fp8-block"),
            ("blackwell", "fp8"), ("blackwell", "fp8-block"), ("blackwell", "nvfp4"),
        )
    },
    "bandwidth_efficiency.gddr.bf16": (BANDWIDTH["gddr"]["bf16"], 0.06),
    "per_scaled_product_s.fp8": (2e-6, 0.6),
    "per_scaled_product_s.fp8-block": (3e-6, 0.6),
    "per_scaled_product_s.nvfp4": (3.5e-6, 0.4),
    "per_all_reduce_s.nvlink": (10e-6, 0.4),
    "per_all_reduce_s.pcie": (24e-6, 0.4),
    "prefill_efficiency.ampere.bf16": (0.55, 0.15),
    "prefill_efficiency.hopper.bf16": (0.60, 0.03),
    "prefill_efficiency.hopper.fp8": (0.44, 0.15),
    "prefill_efficiency.blackwell.bf16": (0.45, 0.2),
    "prefill_efficiency.blackwell.fp8": (0.36, 0.15),
    "prefill_efficiency.blackwell.fp4": (0.27, 0.15),
    "prefill_launch_s.0.0": (25e-6, 0.5),
    "per_request_s": (0.015, 0.7),
    "per_running_request_s": (0.4e-3, 0.7),
    "per_prompt_token_s": (5e-6, 0.8),
    "era.2023.step": (2e-3, 0.7),
    "era.2023.exchange": (8.0, 0.5),
    "era.2024.step": (2e-3, 0.7),
    "era.2024.sequence": (2.0, 0.7),
    "era.2024.streaming": (50e-6, 0.7),
}  # fmt: skip
"""Middle, and the width of its logarithm. Bandwidth, launches, products and all-reduces: kernel
tables, and narrow where they are; prefill: earlier fits by others; the exchanges of 2023: fits of
Llama-2-70B on that engine by others (94 to 136 microseconds per layer and doubling); the rest: what
servers in Python take."""
LAUNCHES_SINCE = {"0.0": None, "0.19": 0.0}
"""The host's launches of a kernel of a prompt by version: fitted, or no longer seen."""

SECOND_RUNNER_SEQUENCE_S = 5e-6
"""By vLLM's second model runner, which no public row had: ``h200_server_speed.csv`` alone, with the
efficiency of prefill in 16 bits on Hopper. Both are fitted on TPOT and TTFT there (decision 72)."""

SMALLEST_KERNEL_S = 2.1e-6
"""Of a norm or a quantization with nothing to do: H100 and H200 2.0, B200 2.2 microseconds."""
LAUNCH_SCALE = {"ampere": 1.42, "hopper": 1.0, "blackwell": 0.93, "ada": 1.0,
                "blackwell-rtx": 1.0, "other": 1.0}  # fmt: skip
"""Of the floors of products and of attention together, against Hopper's. Ada and RTX boards gain
on one what they lose on the other."""
EXPERTS_FLOOR_S: Mapping[str, Mapping[str, float]] = {
    "ampere": {"bf16": 42e-6, "other": 42e-6},
    "hopper": {"bf16": 34e-6, "fp8": 30e-6, "fp8-block": 45e-6, "int4": 44e-6, "mxfp4": 37e-6,
               "other": 44e-6},
    "blackwell": {"bf16": 18e-6, "fp8": 20e-6, "fp8-block": 35e-6, "fp8-block.triton": 39e-6,
                  "nvfp4": 20e-6, "mxfp4": 36e-6, "int4": 43e-6, "other": 35e-6},
    "blackwell-rtx": {"bf16": 29e-6, "fp8": 31e-6, "nvfp4": 51e-6, "mxfp4": 21e-6, "int4": 17e-6,
                      "other": 31e-6},
    "other": {"bf16": 34e-6, "fp8": 30e-6, "fp8-block": 45e-6, "other": 44e-6},
}  # fmt: skip
"""Of choosing, sorting, both grouped products and the sum, with hardly any token: the constant of
the MoE tables of vLLM 0.14 (A100) and 0.19 to 0.24. Those of L40S tell no floor from its reads. In
blocks of fp8: Hopper's of Triton, Blackwell's of TRTLLM (0.24), and of Triton (0.19)."""
CUTLASS_BLOCK_S, CUTLASS_EXPERT_S = 29e-6, 0.25e-6
"""The same of FlashInfer's CUTLASS kernels in blocks of fp8 on Hopper, and for each expert that a
rank has: whole ones in vLLM 0.24 on H100 and H200, slices in TensorRT-LLM 1.3, whose kernels they
are. Half of 7,587 rows are within 11 %. They read experts as fast as Triton's do."""
CUTLASS_EXPERTS: Mapping[str, Mapping[str, Mapping[str, CutlassExperts]]] = {
    "hopper": {"fp8-block": {"0.0": "none", "0.15": "all", "0.17": "whole"}}
}
"""By version: oracle/fp8.py of 0.15 to 0.33. Before, DeepGEMM's or Triton's."""
EXPERTS_BANDWIDTH: Mapping[str, Mapping[str, float]] = {
    "hopper": {"bf16": 0.91, "fp8-block": 0.88, "int4": 0.75, "mxfp4": 0.68},
    "blackwell": {"bf16": 0.90, "fp8": 0.87, "fp8-block": 0.91, "fp8-block.triton": 0.65,
                  "nvfp4": 0.85, "int4": 0.51, "mxfp4": 0.87},
    "ada": {"bf16": 0.79, "fp8": 0.77, "fp8-block": 0.78, "int4": 0.81, "mxfp4": 0.79},
    "blackwell-rtx": {"bf16": 0.96, "fp8": 0.95, "nvfp4": 0.87, "int4": 0.91, "mxfp4": 0.92},
}  # fmt: skip
"""Of the grouped products of the MoE tables. On Hopper mxfp4 is unpacked to 16 bits, as int4 is on
Hopper and Blackwell; on Blackwell mxfp4 has products of its own (activations in mxfp8), and those
that unpack it there are no evidence. The A100's rows are of skewed choices only, and left out."""
_BLACKWELL = {
    "bf16": _rate("bf16", 0.267, 200), "fp8": _rate("fp8", 0.27, 310),
    "fp8-block": _rate("fp8", 0.087, 45), "nvfp4": _rate("fp4", 0.284, 490),
    "mxfp4": _rate("fp8", 0.346, 455), "mxfp4.trtllm": _rate("bf16", 0.234, 251),
    "int4": _rate("bf16", 0.07, 58),
    "other": _rate("bf16", 0.07, 58),
}  # fmt: skip


def _blackwell(**factors: float) -> dict[str, ExpertsPrefill]:
    """Return the rates of B200's experts, times these of its own peaks."""
    return {
        name: _rate(
            rate.precision, rate.efficiency * factors.get(name, factors["bf16"]), rate.half_width
        )
        for name, rate in _BLACKWELL.items()
    }


EXPERTS_PREFILL: Mapping[str, Mapping[str, ExpertsPrefill]] = {
    "ampere": {"bf16": _rate("bf16", 0.24, 10), "other": _rate("bf16", 0.24, 10)},
    "hopper": {"bf16": _rate("bf16", 0.41, 145), "fp8": _rate("fp8", 0.35, 280),
               "fp8-block": _rate("fp8", 0.226, 185), "mxfp4": _rate("bf16", 0.156, 17),
               "mxfp4.triton": _rate("bf16", 0.44, 96),
               "int4": _rate("bf16", 0.15, 65), "other": _rate("bf16", 0.15, 65)},
    "blackwell": _BLACKWELL,
    "B300": _blackwell(bf16=1.03, fp8=1.04, **{"fp8-block": 1.065, "nvfp4": 0.69, "mxfp4": 1.12}),
    "GB300": _blackwell(bf16=1.0, fp8=1.02, **{"fp8-block": 1.02, "nvfp4": 0.70, "mxfp4": 1.07}),
    "ada": {"bf16": _rate("bf16", 0.33, 110), "fp8": _rate("fp8", 0.24, 174),
            "fp8-block": _rate("fp8", 0.22, 71), "mxfp4": _rate("bf16", 0.31, 70),
            "int4": _rate("bf16", 0.32, 69), "other": _rate("bf16", 0.32, 69)},
    "blackwell-rtx": {"bf16": _rate("bf16", 0.38, 106), "fp8": _rate("fp8", 0.33, 186),
                      "nvfp4": _rate("fp4", 0.476, 710), "mxfp4": _rate("bf16", 0.376, 77),
                      "int4": _rate("bf16", 0.457, 83), "other": _rate("bf16", 0.457, 83)},
    "other": {"bf16": _rate("bf16", 0.41, 145), "other": _rate("bf16", 0.41, 145)},
}  # fmt: skip
"""Precision of the products, share of its peak, and the slice of an expert at which it is halved:
MoE tables of vLLM 0.14 (A100), 0.19 to 0.24, of 1 to 65,536 tokens and uneven choices, as a floor,
the reads of the experts touched, and the work, one after the other. Half of the rows are within
15 to 25 % of it. Blackwell's fp8 is the mean of two kernels, of 270 and 560 TFLOP/s in blocks and
of 870 and 1,700 else: the older, which every version has, is the slower. What unpacks weights to 16
bits is the one of int4."""
OVERLAP_POWER = 1.5
"""Of the reads and the work of a product: 1.0 to 1.4 in eight and four bits, 1.7 to 3 in 16."""
ALL_REDUCE_GROWTH = {"nvlink": 0.1, "pcie": 1.0}
"""From 2 to 8 GPUs: H100 4.2 to 4.8 microseconds, B200 6.8 to 7.5; L40S 5.3 to 21.9."""
OLD_EXCHANGE_GROWTH = 0.7
"""Added for engines of 2023: they launched a collective of several kernels from Python for every
sum, which is as slow as the slowest process; it grows about with the depth of a tree. Their
launches of other kernels hide behind kernels that take longer."""
LINK_EFFICIENCY = {"blackwell": 0.57, "other": 0.65, "pcie": 0.3}
"""Of exchanges of a megabyte and more in kernel tables. Over NVLink the slope from 8 to 64 MiB
among 2, 4 and 8 GPUs, launched as prompts' are: H200 0.49, 0.66, 0.75, H100 alike, B200 0.55, 0.61,
0.56. PCIe 0.06 to 0.6, less the more GPUs and where they do not reach each other's memory."""
ONE_SHOT = {"blackwell": 0.25, "other": 0.55}
BULK_EXTRA_S = {"blackwell": 13e-6, "other": 4.5e-6}
"""All-reduces over NVLink of less than about a megabyte: A100, H100 and H200 alike, B200 and B300
switch later and lose more. Over PCIe the ring's share is taken throughout."""
SERVED_SHARE = 0.62
"""Of the efficiency of large products in kernel tables, what prefill has of it when served: the
mean over A100, H100, H200 and B200. It stands in where only kernels were measured."""
OF_GENERATION: Mapping[str, Mapping[str, float]] = {
    "B300": {"bf16": 1.10, "fp8": 1.09, "fp4": 0.70},
    "GB300": {"bf16": 1.14, "fp8": 1.14, "fp4": 0.75},
}
"""Large products' share of the peak over that of B200, in kernel tables: with more power they are
faster in every format by as much, though only the peak of fp4 is higher."""
KERNEL_EFFICIENCY = {
    "ada": {"bf16": 0.66, "fp8": 0.52, "int8": 0.52},
    "blackwell-rtx": {"bf16": 0.92, "fp8": 0.87, "int8": 0.87, "fp4": 0.72},
}
EXPOSED = 0.9
"""Share of the prefill work that decode's reads do not hide: speed.md section 3b."""
MEASURED = {"ampere": ("bf16",), "hopper": ("bf16", "fp8", "fp8-block"),
            "blackwell": ("fp8", "fp8-block", "nvfp4")}  # fmt: skip
"""Formats of weights that rows of vLLM have, by generation. fp8 on Ampere, unpacked to 16 bits, is
three models on servers of 2024, whose hosts set the pace: too little."""
MEASURED_ATTENTION, MEASURED_LAYERS = ("full",), 28
SPREADS = {"step": 0.15, "first_token": 0.5}
"""What eight of ten keep whose model is left out of the fit: of rows of steps, and of first tokens
where each pair of model and board counts once, since two models have nine rows of ten. Models with
and without experts are taken alike: those with some are three, of steps, and one, of first
tokens."""
UNMEASURED = {"generation": 0.2, "kernels": 0.3, "format": 0.2, "attention": 0.2, "depth": 0.2,
              "pipeline": 0.3}  # fmt: skip
"""Added in squares. Eight of ten of SGLang's rows of latent and linear attention, at its own
overheads, are off by as much as ``attention`` makes of it. No row tells the others apart, and they
are taken alike; ``kernels`` is a generation of which not even those were measured. ``pipeline`` is
by what two changes to vLLM's pipelines moved throughput: 31 % (vllm#32618) and 23 % (vllm#57433).
"""
LIKE_UNKNOWN = "hopper"
"""The generation whose prefill stands in for one of which not even kernels were measured."""
