"""What ``plan``, ``compare`` and ``init`` are asked: manifests, a line of options, or both."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click

from tonnage.catalog.gpu import Gpu
from tonnage.cli.commands.options import (
    FORMATS,
    CatalogOptions,
    option,
    parsed,
    positive,
    set_option,
)
from tonnage.cli.commands.prices import PriceOptions, named_gpu, with_prices
from tonnage.cli.console import Failure, remark
from tonnage.cli.read.hub import checkpoint_in
from tonnage.cli.read.manifest import Manifests, load
from tonnage.cli.read.references import References, checked_text
from tonnage.cli.read.spec_overrides import Change, change_of, manifest_of_changes, with_changes
from tonnage.cli.results.planning import PlanContext
from tonnage.units import seconds, tokens

DECIMALS: Final = 4
"""Of a rate in a spec."""
OFFLINE: Final = "Note: without --ttft or --tpot it is planned offline, at the memory ceiling"


def _names(classes: Iterable[str]) -> list[str]:
    """Return each name, written as a node label and a spec have it: with no space."""
    return ["-".join(name.split()) for each in classes for name in each.split(",")]


def _tokens(value: str) -> int:
    if value in FORMATS:
        raise ValueError(f"{value} is a format: write -o {value}; this counts tokens")
    return tokens(value)


def _duration(value: str) -> str:
    """Take a duration as manifests have it, as it is written."""
    seconds(value)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputOptions:
    # fmt: off
    names: tuple[str, ...] = option("-f", "--filename", multiple=True, metavar="FILE|DIR|-",
        help="File or folder with manifests; may be repeated. '-' reads standard input. Options "
        "below override its fields; without -f they define the model.")
    model_id: str | None = option("--model", metavar="ID", help="Hugging Face id of the model.")
    classes: tuple[str, ...] = option("--gpu", multiple=True, metavar="NAME[,NAME...]",
        help="GPU class; compare takes several, with all details, and all classes by default.")
    requests_per_s: float | None = option("--rps", "--requests-per-second", type=float,
        callback=parsed(positive),
        help="Demand: requests per second.")
    prompt_tokens: int | None = option("--prompt", metavar="TOKENS", callback=parsed(_tokens),
        help="Demand: mean tokens of a prompt.")
    output_tokens: int | None = option("--output", metavar="TOKENS", callback=parsed(_tokens),
        help="Demand: mean tokens of an output.")
    ttft: str | None = option("--ttft", metavar="DURATION", callback=parsed(_duration),
        help="SLO: time to the first token (TTFT) that 95 % of requests meet, such as 2s.")
    tpot: str | None = option("--tpot", metavar="DURATION", callback=parsed(_duration),
        help="SLO: time per output token (TPOT) that 95 % of requests meet, such as 50ms.")
    settings: tuple[str, ...] = set_option(
        "Any other field of the spec, such as contextLength=32768")
    prices: PriceOptions
    whole_nodes: bool = option("--whole-nodes", is_flag=True,
        help="Pay for whole instances, with the GPUs that no replica uses.")
    catalog: CatalogOptions
    checkpoint_folder: Path | None = option("--checkpoint",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="Folder with a checkpoint: weight sizes are read from the safetensors headers, the "
        "model from config.json.")
    asks_hub: bool = option("--hub", is_flag=True,
        help="Fetch safetensors headers, and config.json of models that are not in the catalogue, "
        "from the Hugging Face Hub.")
    # fmt: on

    def changes(self, gpu: str | None) -> tuple[Change, ...]:
        """Return what the options say of fields of a spec; ``gpu``: the class that is meant."""
        given = {
            "model.id": self.model_id,
            "hardware.gpu": gpu,
            "demand.promptTokens.mean": self.prompt_tokens,
            "demand.outputTokens.mean": self.output_tokens,
            "demand.requestsPerSecond": _rate(self.requests_per_s),
            "slo.timeToFirstToken.p95": self.ttft,
            "slo.timePerOutputToken.p95": self.tpot,
        }
        further = [change_of(each) for each in self.settings]
        return (*((path, value) for path, value in given.items() if value is not None), *further)


def class_of(question: PlanInputOptions, *, is_running: bool = False) -> str | None:
    """Return the one class that is named, if any; ``is_running``: pods of a cluster name it."""
    names = _names(question.classes)
    if len(names) > 1:
        several = ", ".join(names)
        raise Failure(f"plan takes one GPU class, not {several}; 'tonnage compare' takes several")
    is_set = any("hardware" in each.partition("=")[0] for each in question.settings)
    if not (names or question.names or is_set or is_running) and question.model_id:
        raise Failure(
            "plan needs a GPU class: --gpu H100, for example; 'tonnage compare' ranks all of them"
        )
    return names[0] if names else None


def asking(
    question: PlanInputOptions,
    gpu: str | None,
    *,
    has_slo: bool = True,
    loaded: Manifests | None = None,
) -> Manifests:
    """Return what is asked about: manifests with the changes of the options, or theirs alone.

    ``has_slo``: an SLO counts for the answer, so that it is said where there is none. ``loaded``:
    the manifests, where they were read before.
    """
    changes = question.changes(gpu)
    if question.names:
        manifests = loaded or load(question.names)
        changed = (with_changes(each, changes) for each in manifests.model_deployments)
        return replace(manifests, model_deployments=tuple(changed))
    paths = {path for path, _ in changes}
    if "model.id" not in paths:
        raise Failure("nothing is asked: give manifests with -f, or a model with --model")
    if has_slo and not any(path.startswith("slo") for path in paths):
        remark(OFFLINE)
    return replace(load([]), model_deployments=(manifest_of_changes(changes),))


def _rate(requests_per_s: float | None) -> int | str | None:
    """Return a rate as a spec has it: a whole number, or text with few decimals."""
    if requests_per_s is None:
        return None
    written = f"{requests_per_s:.{DECIMALS}f}".rstrip("0").rstrip(".")
    if written == "0":
        raise Failure(f"--rps {requests_per_s:g}: a spec has {DECIMALS} decimals of it at most")
    return int(written) if written.isdigit() else written


def named_classes(classes: Iterable[str], known: Mapping[str, Gpu]) -> list[Gpu]:
    """Return the classes that were named, by name or alias, each once."""
    found = [named_gpu(name, known, field="--gpu") for name in _names(classes)]
    return list({gpu.name: gpu for gpu in found}.values())


def beside(question: PlanInputOptions) -> References:
    folder = question.checkpoint_folder
    config = question.catalog.config()
    if config is None and folder and (path := folder / "config.json").is_file():
        config = checked_text(str(path), option="--checkpoint")
    return References(
        config=config,
        checkpoint=checkpoint_in(folder) if folder else None,
        asks_hub=question.asks_hub,
    )


def terms_of(question: PlanInputOptions, **more: Any) -> PlanContext:
    known = question.catalog.gpus()
    gpus = with_prices(known, question.prices, whole_nodes=question.whole_nodes)
    return PlanContext(gpus=gpus, **more)
