"""A published estimator of serving speed, asked about the same measured engines.

    python tests/bench/rivals_speed.py --data serving_speed.csv --configs model_configs.yaml

AIConfigurator is told what a careful user knows before the engine starts: the model's
``config.json``, the GPU, the split, the precisions, the lengths and how many requests run at once.
No measured column is passed on. Its answers are kept under ``~/.cache/tonnage/rivals``.
"""

import csv
import hashlib
import json
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml
from rivals import HERE, REQUIREMENTS, Document, Row, environment, spread
from speed_questions import UnaskableError, point_of, question

RIVAL = "aiconfigurator"
VALUES = {
    "ttft_p50_ms": "ttft_ms",
    "ttft_mean_ms": "ttft_ms",
    "tpot_p50_ms": "tpot_ms",
    "tpot_mean_ms": "tpot_ms",
    "itl_p50_ms": "tpot_ms",
    "itl_mean_ms": "tpot_ms",
    "decode_step_ms": "decode_step_ms",
    "prefill_ms": "prefill_ms",
    "prefill_tok_s": "prefill_tok_s",
    "batch_e2e_ms": "batch_e2e_ms",
    "output_tok_s_total": "tokens_per_s",
    "total_tok_s_per_gpu": "total_tok_s_per_gpu",
}
"""Which figure of an answer a metric is compared with. It says nothing of the slowest requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedAnswer:
    """What it says about one operating point; ``refused`` is its own text when it says nothing."""

    point: str
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    tokens_per_s: float | None = None
    """Generated tokens, of the whole replica."""
    total_tok_s_per_gpu: float | None = None
    """Prompt and generated tokens."""
    decode_step_ms: float | None = None
    prefill_ms: float | None = None
    """Of all prompts of a batch."""
    prefill_tok_s: float | None = None
    batch_e2e_ms: float | None = None
    database: str | None = None
    """SILICON: its measurements alone. HYBRID: with formulas in their gaps."""
    refused: str | None = None
    note: str = ""


def rival_speeds(
    rows: Iterable[Row], configs: Document, *, nearest_boards: bool = False
) -> dict[str, float | None]:
    """Return its value of each row's own metric by row id, in that metric's unit.

    None where it refuses, where the row leaves out a length or the number of requests, and for
    metrics that it does not predict. ``nearest_boards``: the nearest one answers for a board that
    it has no measurements of.

    Raises:
        subprocess.CalledProcessError: it cannot be installed, or the adapter broke.
    """
    rows = list(rows)
    answers = speed_answers(rows, configs, nearest_boards=nearest_boards)
    return {row["id"]: value_of(row, answers[point_of(row)]) for row in rows}


def speed_answers(
    rows: Iterable[Row], configs: Document, *, nearest_boards: bool = False
) -> dict[str, SpeedAnswer]:
    """Ask about each operating point once; the answers by point. Raises as ``rival_speeds``."""
    questions: list[dict[str, Any]] = []
    answers: dict[str, SpeedAnswer] = {}
    for point, members in points(rows).items():
        try:
            questions.append(question(members, configs) | {"nearest_boards": nearest_boards})
        except UnaskableError as error:
            answers[point] = SpeedAnswer(point=point, refused=f"not asked: {error}")
    return answers | {each["point"]: SpeedAnswer(**each) for each in ask(questions)}


def points(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[point_of(row)].append(row)
    return found


def value_of(row: Row, answer: SpeedAnswer) -> float | None:
    name = VALUES.get(row["metric"])
    return None if name is None else getattr(answer, name)


# --- asking once


def ask(questions: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the answers, from the cache where the same was asked before."""
    keys = {each["point"]: key_of(each) for each in questions}
    path = cache_path()
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    fresh = [each for each in questions if keys[each["point"]] not in known]
    if fresh:
        known |= {keys[each["point"]]: each for each in spoken(fresh)}
        fresh_path = path.with_suffix(".new")
        fresh_path.write_text(json.dumps(known))
        fresh_path.replace(path)
    return (known[key] | {"point": point} for point, key in keys.items())


def key_of(question: Mapping[str, Any]) -> str:
    """Return a key that is the same for two points with the same question."""
    text = json.dumps({**question, "point": None}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def cache_path() -> Path:
    """Return the file of answers by this adapter: with another text it may answer otherwise."""
    adapters = (HERE / "rival_speed.py", HERE / "rival_aiconfigurator.py")
    text = REQUIREMENTS[RIVAL] + "".join(each.read_text() for each in adapters)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return environment(RIVAL).parent / f"speed-{digest}.json"


def spoken(questions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    command = [str(environment(RIVAL) / "bin" / "python"), "-W", "ignore"]
    lines = "".join(json.dumps(each) + "\n" for each in questions)
    done = subprocess.run(  # noqa: S603
        [*command, str(HERE / "rival_speed.py")],
        input=lines,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


# --- how near it comes


def errors(
    rows: Iterable[Row], answers: Mapping[str, SpeedAnswer], label: Callable[[Row], str]
) -> dict[str, list[float]]:
    """Return the signed relative errors by label: positive is a larger value than measured."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows:
        value = value_of(row, answers[point_of(row)])
        if value is not None:
            found[label(row)].append(value / float(row["value"]) - 1)
    return dict(sorted(found.items()))


def table(title: str, found: Mapping[str, Sequence[float]]) -> list[str]:
    return [title, *(f"  {name:64} {len(all_):4}  {spread(all_)}" for name, all_ in found.items())]


def summary(rows: Sequence[Row], answers: Mapping[str, SpeedAnswer]) -> list[str]:
    """Return the lines to print."""
    refused = Counter(each.refused for each in answers.values() if each.refused)
    databases = Counter(each.database for each in answers.values() if each.database)
    compared = sum(value_of(row, answers[point_of(row)]) is not None for row in rows)
    mine = [row for row in rows if row["engine"] == "vllm"]

    def by_database(row: Row) -> str:
        return f"{row['metric']:20} {answers[point_of(row)].database}"

    def by_model(row: Row) -> str:
        return f"{row['metric']:20} {row['model']} {row['weight_quant']} {row['gpu']}"

    return [
        f"{len(answers)} points, answered {dict(databases)}; {compared} of {len(rows)} rows",
        *(f"  refused {count:4}: {reason}" for reason, count in refused.most_common()),
        *table(
            "all engines", errors(rows, answers, lambda row: f"{row['metric']} {row['engine']}")
        ),
        *table("vLLM, both databases", errors(mine, answers, lambda row: row["metric"])),
        *table("vLLM by database", errors(mine, answers, by_database)),
        *table("vLLM by GPU", errors(mine, answers, lambda row: f"{row['metric']} {row['gpu']}")),
        *table("vLLM by model and GPU", errors(mine, answers, by_model)),
    ]


@click.command()
@click.option("--data", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--configs", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--nearest-boards", is_flag=True, help="Ask the nearest board where it lacks one.")
def main(data: Path, configs: Path, nearest_boards: bool) -> None:
    """Print points answered and refused, with reasons, and the errors by metric."""
    with data.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    answers = speed_answers(
        rows, yaml.safe_load(configs.read_text()), nearest_boards=nearest_boards
    )
    click.echo("\n".join(summary(rows, answers)))


if __name__ == "__main__":
    main()
