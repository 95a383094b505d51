"""Two published estimators of KV-cache capacity, asked about the same measured engines.

    python tests/bench/rivals.py --data kv_capacity.csv --configs model_configs.yaml

Each gets a virtual environment of its own, made once under ``~/.cache/tonnage/rivals``, and is
told what a careful user knows before the engine starts: the model's ``config.json``, the GPU, the
flags, and vLLM's defaults for flags that are not set. No measured column is passed on.
"""

import contextlib
import csv
import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import click
import yaml

from tonnage.catalog.config.formats.quantization import WEIGHT_FORMATS
from tonnage.catalog.gpu import CatalogError
from tonnage.catalog.models import read_model_config
from tonnage.sizing.parallelism.shard import shard_of
from tonnage.sizing.split import Parallelism

HERE = Path(__file__).parent
Row = Mapping[str, str]
Document = Mapping[str, Any]

REQUIREMENTS = {"kvfit": "kvfit==0.3.0", "aiconfigurator": "aiconfigurator==0.12.0"}
TABLES = tomllib.loads((HERE / "rival_tables.toml").read_text())
LARGE_BOARD_GIB = 70
LONG_PROMPT_TOKENS = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a rival says about one row; ``refused`` is its own text when it says nothing."""

    id: str
    kv_tokens: float | None = None
    max_concurrency: float | None = None
    weights_gib: float | None = None
    """Of one GPU."""
    refused: str | None = None
    note: str = ""
    """What was done to get an answer beyond a plain question."""


def rival_answers(name: str, rows: Iterable[Row], configs: Document) -> dict[str, Answer]:
    """Ask one rival about all rows; the answers by the id of the row.

    Raises:
        subprocess.CalledProcessError: it cannot be installed, or the adapter broke.
    """
    questions = [question(row, configs) for row in rows]
    python = str(environment(name) / "bin" / "python")
    ask = [python, "-W", "ignore", str(HERE / f"rival_{name}.py")]
    lines = "".join(json.dumps(each) + "\n" for each in questions if "config" in each)
    done = subprocess.run(ask, input=lines, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603
    answers = [Answer(**json.loads(line)) for line in done.stdout.splitlines()]
    unknown = {each["id"] for each in questions} - {answer.id for answer in answers}
    answers += [Answer(id=each, refused="no config.json of this model") for each in unknown]
    return {answer.id: answer for answer in answers}


def environment(name: str) -> Path:
    """Return the rival's virtual environment, made on first use."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    folder = cache / "tonnage" / "rivals" / name
    stamp, requirement = folder / "installed.txt", REQUIREMENTS[name]
    if not stamp.exists() or stamp.read_text() != requirement:
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)  # noqa: S603
        install = [str(folder / "bin" / "pip"), "install", "--quiet", requirement]
        subprocess.run(install, check=True)  # noqa: S603
        stamp.write_text(requirement)
    return folder


# --- what a careful user knows


def question(row: Row, configs: Document) -> dict[str, Any]:
    """Return what a rival is told: configuration columns, and vLLM's defaults for empty ones."""
    config = checkpoint_config(row["model"], row["weight_quant"], configs)
    if config is None:
        return {"id": row["id"]}
    board, nominal_gib = board_of(row["gpu"])
    reported_gib = number(row["gpu_memory_gib_reported"])
    quant = quantization(row["weight_quant"])
    max_model_len = number(row["max_model_len"]) or max_positions(config)
    large = (reported_gib or nominal_gib or 0) >= LARGE_BOARD_GIB and "A100" not in board
    return {
        "id": row["id"],
        "board": board,
        "nominal_gib": nominal_gib,
        "reported_gib": reported_gib,
        "tensor": int(row["tp"] or 1),
        "pipeline": int(row["pp"] or 1),
        "data": int(row["dp"] or 1),
        "utilization": number(row["gpu_memory_utilization"]) or utilization(row["vllm_version"]),
        "max_model_len": max_model_len and int(max_model_len),
        "max_num_seqs": int(number(row["max_num_seqs"]) or (1024 if large else 256)),
        "max_num_batched_tokens": int(
            number(row["max_num_batched_tokens"])
            or batched_tokens(row["engine"], max_model_len, is_large=large)
        ),
        "quant": quant,
        "kv_dtype": kv_dtype(row["kv_cache_dtype"], quant, config),
        "config": config,
        "checkpoint_bytes": checkpoint_bytes(row["model"], quant, config),
    }


def board_of(gpu: str) -> tuple[str, float | None]:
    """Return our name of a board and its nominal memory in GiB, as its users read the box.

    >>> board_of("NVIDIA A100-SXM4-40GB")
    ('A100', 40.0)
    """
    size = re.search(r"(\d+) ?GB", gpu)
    found = (each for each in TABLES["boards"] if re.search(each[0], gpu, re.IGNORECASE))
    _, name, nominal_gib = next(found, (None, gpu, None))
    return name, float(size[1]) if size else nominal_gib


def utilization(version: str) -> float:
    """Return vLLM's default for ``--gpu-memory-utilization``: it rose with 0.20.

    >>> utilization("0.19.x dev"), utilization("~0.21/0.22 (2026-06-10)")
    (0.9, 0.92)
    """
    minor = re.search(r"\b0\.(\d+)(?!x)\b", version)
    return 0.9 if minor and int(minor[1]) < 20 else 0.92


def batched_tokens(engine: str, max_model_len: float | None, *, is_large: bool) -> float:
    """Return vLLM's default for ``--max-num-batched-tokens``.

    The first engine took whole prompts unless they may be long.
    """
    if engine == "v0" and max_model_len is not None and max_model_len <= LONG_PROMPT_TOKENS:
        return max(max_model_len, 2048)
    return 8192 if is_large and engine != "v0" else 2048


def quantization(label: str) -> str:
    """Return the kind of weights behind a label of the table.

    >>> [quantization(x) for x in ("gptq int4", "none (dtype float32)", "compressed-tensors W8A8")]
    ['int4', 'float32', 'int8']
    """
    if label.startswith("none"):
        return "float32" if "float32" in label else "none"
    found = [kind for mark, kind in TABLES["weight_marks"].items() if mark in label.lower()]
    return found[0] if found else label


def kv_dtype(flag: str, quant: str, config: Document) -> str:
    """Return what the flag means: auto follows the checkpoint, else the model's own type."""
    if flag != "auto":
        return flag
    scheme = config.get("quantization_config", {})
    if scheme.get("kv_cache_scheme") or scheme.get("kv_cache_quant_algo") == "FP8":
        return "fp8"
    return "float32" if quant == "float32" else "bf16"


def checkpoint_config(model: str, label: str, configs: Document) -> dict[str, Any] | None:
    """Return the config.json of a row's checkpoint; None where the document has no such model."""
    entry = configs["models"].get(model)
    if entry is None:
        return None
    config: dict[str, Any] = json.loads(json.dumps(configs["shapes"][entry["shape"]]["config"]))
    for path, value in entry.get("overrides", {}).items():
        *parents, key = path.split(".")
        block = config
        for parent in parents:
            block = block[parent]
        block[key] = value
    others = entry.get("other_checkpoints", {})
    source = others.get(label) or others.get(quantization(label)) or entry
    if "quantization_config" in source:
        config["quantization_config"] = source["quantization_config"]
    text = config.get("text_config", {})
    if text.get("model_type") in TABLES["class_defaults"]:
        config["text_config"] = TABLES["class_defaults"][text["model_type"]] | text
    return config


def max_positions(config: Document) -> float | None:
    """Return vLLM's default for ``--max-model-len``."""
    outer = config.get("thinker_config", config)
    block: dict[str, Any] = outer.get("text_config", outer)
    return block.get("max_position_embeddings") or block.get("model_max_length")


def checkpoint_bytes(model: str, quant: str, config: Document) -> float | None:
    """Return the size of the weights, which a user reads off the model's page.

    Here it is our own count, from the configuration: within about 1 % of published files. A
    scheme that we refuse is counted as the usual one of its kind.
    """
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    for candidate in (config, plain):
        with contextlib.suppress(CatalogError):
            shape = read_model_config(json.dumps(candidate), name=model)
            usual = WEIGHT_FORMATS.get(quant, shape.weight_format)
            weights = usual if candidate == plain else shape.weight_format
            shard = shard_of(shape, weights=weights, kv_element_bytes=2, parallelism=Parallelism())
            return shard.weights_bytes * (2 if quant == "float32" else 1)
    return None


# --- how near they come


def number(text: str) -> float | None:
    return float(text) if text else None


def measured(row: Row) -> tuple[str, float] | None:
    """Return what the log of a row printed: its concurrency, or else its tokens."""
    concurrency = number(row["measured_max_concurrency"])
    if concurrency is not None:
        return "max_concurrency", concurrency
    tokens, blocks = number(row["measured_kv_tokens"]), number(row["measured_gpu_blocks"])
    if tokens is None and blocks is not None and row["block_size"]:
        tokens = blocks * float(row["block_size"])
    if tokens is None:
        return None
    if row["max_model_len"]:
        return "max_concurrency", tokens / float(row["max_model_len"])
    return "kv_tokens", tokens


def relative_error(row: Row, answer: Answer) -> float | None:
    """Return the signed error of an answer: positive promises too much."""
    truth = measured(row)
    if truth is None or answer.refused is not None:
        return None
    said = getattr(answer, truth[0])
    return None if said is None else said / truth[1] - 1


def summary(name: str, rows: Sequence[Row], answers: Mapping[str, Answer]) -> list[str]:
    """Return the lines to print about one rival."""
    refused = Counter(answer.refused for answer in answers.values() if answer.refused)
    errors = [relative_error(row, answers[row["id"]]) for row in rows]
    signed = [error for error in errors if error is not None]
    helped = sum(bool(answer.note) for answer in answers.values())
    return [
        f"{name}: {len(rows)} rows, {len(rows) - refused.total()} answered ({helped} with help)",
        f"  {len(signed)} compared: {spread(signed)}",
        *(f"  refused {count:3}: {reason}" for reason, count in refused.most_common()),
    ]


def spread(signed: Sequence[float]) -> str:
    if len(signed) < 2:
        return "too few"
    size = [abs(error) for error in signed]
    p90 = quantiles(size, n=10, method="inclusive")[-1]
    return f"median error {median(size):.1%}, p90 {p90:.1%}, bias {median(signed):+.1%}"


def details(row: Row, answer: Answer) -> str:
    truth, error = measured(row), relative_error(row, answer)
    said = answer.refused or f"{answer.max_concurrency:.2f} x, {answer.kv_tokens:.0f} tokens"
    compared = "" if truth is None or error is None else f"{truth[1]:.2f} {error:+.1%}"
    return f"  {row['id']:8} {compared:>20}  {said}  {answer.note}"


@click.command()
@click.option("--data", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--configs", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--details", "show_rows", is_flag=True, help="Print every row.")
def main(data: Path, configs: Path, show_rows: bool) -> None:
    """Print per rival: rows answered, rows refused and why, and the error of the concurrency."""
    with data.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    document = yaml.safe_load(configs.read_text())
    for name in REQUIREMENTS:
        answers = rival_answers(name, rows, document)
        click.echo("\n".join(summary(name, rows, answers)))
        if show_rows:
            click.echo("\n".join(details(row, answers[row["id"]]) for row in rows))


if __name__ == "__main__":
    main()
