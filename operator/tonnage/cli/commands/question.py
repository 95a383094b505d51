"""What ``plan``, ``compare`` and ``init`` are asked: manifests, a line of options, or both."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click

from tonnage.api.objects import ModelDeployment
from tonnage.api.spec import MOST_GPUS
from tonnage.catalog.gpu import Gpu
from tonnage.catalog.safetensors import Checkpoint
from tonnage.cli.answers.planning import Terms
from tonnage.cli.commands.options import (
    PRICE_OPTIONS,
    duration,
    gpus_option,
    model_config_option,
    positive,
    textbook_option,
    with_group,
)
from tonnage.cli.console import Failure, remark
from tonnage.cli.read.asked import (
    Change,
    ManifestWithGuesses,
    change_of,
    manifest_of_changes,
    with_changes,
)
from tonnage.cli.read.checkpoint import checkpoint_in
from tonnage.cli.read.classes import known_gpus, named_gpu
from tonnage.cli.read.manifest import ManifestObject, Manifests, load
from tonnage.cli.read.prices import Prices, with_prices
from tonnage.cli.read.references import checked_text, config_of
from tonnage.sizing.provenance import Figure

DECIMALS: Final = 4
"""Of a rate in a spec."""
FORMATS: Final = frozenset({"text", "json", "yaml", "markdown", "csv"})


def _names(classes: Iterable[str]) -> list[str]:
    """Return each name, written as a node label and a spec have it: with no space."""
    return ["-".join(name.split()) for each in classes for name in each.split(",")]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionOptions:
    """What the options say, as they were given."""

    names: tuple[str, ...]
    model_id: str | None
    classes: tuple[str, ...]
    requests_per_s: float | None
    prompt_tokens: int | None
    output_tokens: int | None
    ttft: str | None
    tpot: str | None
    tensor: int | None
    pipeline: int | None
    data: int | None
    expert: bool | None
    settings: tuple[str, ...]
    single_prices: tuple[str, ...]
    price_file: str | None
    rate: str | None
    currency: str | None
    whole_nodes: bool
    gpus_folder: Path | None
    config_file: str | None
    checkpoint_folder: Path | None
    asks_hub: bool
    textbook: bool

    @property
    def gpu_names(self) -> list[str]:
        return _names(self.classes)

    def gpus(self) -> Mapping[str, Gpu]:
        """Return the classes that are known, at the buyer's prices."""
        prices = Prices(
            single=self.single_prices,
            file=self.price_file,
            rate=self.rate,
            currency=self.currency,
            whole_nodes=self.whole_nodes,
        )
        return with_prices(known_gpus(self.gpus_folder), prices)

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
            "hardware.parallelism.tensor": self.tensor,
            "hardware.parallelism.pipeline": self.pipeline,
            "hardware.parallelism.data": self.data,
            "hardware.parallelism.expert": self.expert,
        }
        further = [change_of(each) for each in self.settings]
        return (*((path, value) for path, value in given.items() if value is not None), *further)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInput:
    """The ModelDeployments that are asked about, and what stands beside them."""

    manifests: Manifests
    guessed: Mapping[int, frozenset[Figure]]
    """What nobody said, by the number of the ModelDeployment."""

    @property
    def with_guesses(self) -> list[tuple[ManifestObject, frozenset[Figure]]]:
        found = enumerate(self.manifests.model_deployments)
        return [(each, self.guessed.get(number, frozenset())) for number, each in found]


def asking(question: QuestionOptions, gpu: str | None) -> PlanInput:
    """Return what is asked about: manifests with the changes of the options, or theirs alone.

    Raises:
        Failure: there is neither, or a change does not go where it is meant to.
    """
    changes = question.changes(gpu)
    if question.names:
        manifests = load(question.names)
    elif any(path == "model.id" for path, _ in changes):
        manifests = _none_yet()
    else:
        raise Failure("nothing is asked: give manifests with -f, or a model with --model")
    found = (
        [with_changes(each, changes) for each in manifests.model_deployments]
        if question.names
        else [_manifest_of_options(changes)]
    )
    return PlanInput(
        manifests=replace(manifests, model_deployments=tuple(each.resource for each in found)),
        guessed={number: each.guessed for number, each in enumerate(found)},
    )


def _manifest_of_options(changes: tuple[Change, ...]) -> ManifestWithGuesses:
    if not any(path.startswith("slo") for path, _ in changes):
        remark("Note: without --ttft or --tpot it is planned offline, at the memory ceiling")
    return manifest_of_changes(changes)


def _none_yet() -> Manifests:
    return Manifests(model_deployments=(), config_maps={}, deployments={}, others=(), problems=())


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What is known of a model beside its spec: its config.json and its checkpoint."""

    config: str | None
    checkpoint: Checkpoint | None
    asks_hub: bool

    def config_of(
        self, deployment: ModelDeployment, resource: ManifestObject, manifests: Manifests
    ) -> str | None:
        """Return the config.json that was given, else that of the files, else the hub's."""
        config = self.config or config_of(deployment, resource, manifests)
        if config is None and self.asks_hub:
            from tonnage.cli.read.hub import config_from_hub  # noqa: PLC0415  (slow)

            model = deployment.spec.model
            return config_from_hub(model.id, model.revision)
        return config

    def checkpoint_of(self, deployment: ModelDeployment) -> Checkpoint | None:
        """Return the checkpoint that was given, else the one that the hub has, if it has one."""
        if self.checkpoint is not None or not self.asks_hub:
            return self.checkpoint
        from tonnage.cli.read.hub import checkpoint_from_hub  # noqa: PLC0415  (slow)

        model = deployment.spec.model
        try:
            return checkpoint_from_hub(model.id, model.revision)
        except Failure as failure:
            remark(
                f"Note: {failure.message}; the weights of {model.id} are counted from config.json"
            )
            return None


def beside(question: QuestionOptions) -> Beside:
    """Read what the options name beside the manifests."""
    folder = question.checkpoint_folder
    return Beside(
        config=_config_text(question.config_file, folder),
        checkpoint=checkpoint_in(folder) if folder else None,
        asks_hub=question.asks_hub,
    )


def _config_text(config_file: str | None, checkpoint_folder: Path | None) -> str | None:
    """Return the config.json that was given, else that of the checkpoint."""
    if config_file is not None:
        return checked_text(config_file, option="--model-config")
    if checkpoint_folder is None or not (path := checkpoint_folder / "config.json").is_file():
        return None
    return checked_text(str(path), option="--checkpoint")


def terms_of(question: QuestionOptions, **more: Any) -> Terms:
    """Return what the options add to every object."""
    return Terms(gpus=question.gpus(), is_textbook=question.textbook, **more)


def _tokens(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    if value in FORMATS:
        raise click.BadParameter(f"{value} is a format: write -o {value}; this counts tokens")
    if not (value.isascii() and value.isdecimal()) or int(value) == 0:
        raise click.BadParameter(f"{value!r} is not a number of tokens")
    return int(value)


OPTIONS: Final = (
    click.option("-f", "--filename", "names", multiple=True, metavar="FILE|DIR|-",
        help="File or folder with manifests; may be repeated. '-' reads standard input. Without "
        "it the options below make one; with it they change it."),
    click.option("--model", "model_id", metavar="ID", help="Hugging Face id of the model."),
    click.option("--gpu", "classes", multiple=True, metavar="NAME[,NAME...]",
        help="GPU class; compare takes several, with all details, and all classes by default."),
    click.option("--rps", "--requests-per-second", "requests_per_s", type=float, callback=positive,
        help="Demand: requests per second."),
    click.option("--prompt", "prompt_tokens", metavar="TOKENS", callback=_tokens,
        help="Demand: tokens of a prompt, in the mean."),
    click.option("--output", "output_tokens", metavar="TOKENS", callback=_tokens,
        help="Demand: tokens of an answer, in the mean."),
    click.option("--ttft", metavar="DURATION", callback=duration,
        help="SLO: time to the first token that 95 % of requests keep, such as 2s."),
    click.option("--tpot", metavar="DURATION", callback=duration,
        help="SLO: time per output token that 95 % of requests keep, such as 50ms."),
    *(
        click.option(f"--{name}-parallel", name, type=click.IntRange(1, MOST_GPUS), metavar="N",
            help=f"Take splits with so many {ranks} only.")
        for name, ranks in (
            ("tensor", "tensor-parallel ranks"),
            ("pipeline", "pipeline stages"),
            ("data", "data-parallel ranks"),
        )
    ),
    click.option("--expert-parallel/--no-expert-parallel", "expert", default=None,
        help="Whole experts on each rank, or a slice of each."),
    click.option("--set", "settings", multiple=True, metavar="PATH=VALUE",
        help="Any other field of the spec, such as contextLength=32768; may be repeated."),
    *PRICE_OPTIONS,
    click.option("--whole-nodes", "whole_nodes", is_flag=True,
        help="Pay for whole instances, with the GPUs that no replica uses."),
    gpus_option,
    model_config_option,
    click.option("--checkpoint", "checkpoint_folder",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="Folder with a checkpoint: weight sizes are read from the safetensors headers, the "
        "model from config.json."),
    click.option("--hub", "asks_hub", is_flag=True,
        help="Fetch safetensors headers, and config.json of models that are not in the catalogue, "
        "from the Hugging Face Hub."),
    textbook_option,
)  # fmt: skip
"""In the order of the help."""


def question_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that make a question; the command gets them as one ``question``."""
    return with_group(command, OPTIONS, "question", QuestionOptions)
