"""The reference, written from the code."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import click
import yaml
from click.testing import CliRunner
from fields import cell, fields_page, table

from tonnage.cli.commands.app import program
from tonnage.cli.console import BAD_INPUT
from tonnage.control.report.reasons import CONDITIONS, MEANINGS
from tonnage.control.series import FAMILIES
from tonnage.explain.glossary import GLOSSARY, VLLM_NAMES
from tonnage.fleet.heartbeat import FLEET_FAMILIES, INTERNAL_ERRORS
from tonnage.settings import Settings

ROOT: Final = Path(__file__).resolve().parents[3]
CHART: Final = ROOT / "charts/tonnage"
OF_A_RELEASE: Final = {
    r'\{\{ "\{\{ \$labels\.namespace \}\}" \}\}': "NAMESPACE",
    r'\{\{ "\{\{ \$labels\.name \}\}" \}\}': "NAME",
    r"\{\{ \.Release\.Namespace \}\}": "tonnage-system",
    r'\{\{ include "tonnage\.fullname" \. \}\}': "tonnage",
}
"""What the chart's templates leave open, and what it is by default."""
GPUS: Final = """Memory is what the driver reports, peaks are dense, links are one direction per
GPU, rent is a public on-demand price: set your own. A figure that no source states is missing, and
a plan that would need it is refused. `tonnage catalog gpus --sources` prints the sources with their
titles and links."""
REFUSED_GPUS: Final = """## What is refused

Tonnage plans for whole NVIDIA GPUs. It refuses these by name in `hardware.gpu`, and by resource in
the container of a scale target; parts of NVIDIA's GPUs in a class file and in `pods.gpuNodes` too,
there also by the labels of MIG's and of sharing strategies:

| what | names and resources |
| :-- | :-- |
| MIG slices | `NVIDIA-A100-SXM4-80GB-MIG-1g.10gb`, `nvidia.com/mig-3g.40gb` |
| GPUs shared by time slicing or MPS | `Tesla-T4-SHARED`, `nvidia.com/gpu.shared` |
| AMD | `MI300X`, `amd.com/gpu` |
| Intel | `Gaudi3`, `habana.ai/gaudi`, `gpu.intel.com/xe` |
| AWS Neuron | `trn1.32xlarge`, `aws.amazon.com/neuroncore` |
| Google | `TPU-v5e`, `google.com/tpu` |
| Huawei | `Ascend-910B`, `huawei.com/Ascend910` |

A part of a GPU has neither its memory nor its bandwidth. Tonnage does not read the node selector of
a scale target, and cannot tell shared GPUs from whole ones where both are `nvidia.com/gpu`."""
MODELS: Final = """Shapes are counted from the `config.json` of each model. The certainty says
whether that file was seen, or written down from the published architecture and checked by the
number of parameters. A model that is not here is sized from its own `config.json`."""


REASONS: Final = """A condition has a type, a status and a reason; a decision has reasons too. They
stand in `kubectl describe`, in Events, in `tonnage explain`, and in the label `reason` of metrics.
The message beside a reason has the numbers."""


def output_of(arguments: list[str]) -> str:
    """Return what a command prints, or why it refuses what it reads; another failure ends it."""
    result = CliRunner(env={"COLUMNS": "100"}).invoke(program, arguments, catch_exceptions=False)
    if result.exit_code == BAD_INPUT:
        return result.stderr
    if result.exit_code not in {0, 2}:
        raise RuntimeError(f"tonnage {' '.join(arguments)}: {result.output}")
    return result.stdout


def command_page() -> str:
    """Return every command with its options: the help that it prints itself."""
    names = program.context_settings["help_option_names"]
    context = click.Context(program, info_name="tonnage", help_option_names=names)
    lines = ["# Command line", "", "What `--help` says of each command.", ""]
    return "\n".join([*lines, *_command(context, depth=2)])


def _command(context: click.Context, depth: int) -> Iterator[str]:
    command = context.command
    formatter = context.make_formatter()
    command.format_usage(context, formatter)
    command.format_help_text(context, formatter)
    yield from (f"{'#' * depth} {context.command_path}", "", "```text")
    yield from (formatter.getvalue().rstrip(), "```", "")
    yield from table(("option", "what it does"), _options(context))
    yield ""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _command(click.Context(inner, context, name), min(depth + 1, 3))


def _options(context: click.Context) -> Iterator[tuple[str, str]]:
    for each in context.command.params:
        if record := each.get_help_record(context):
            yield f"`{record[0]}`", record[1]
    # Click keeps the help option that a command had first in a process.
    yield f"`{', '.join(context.help_option_names)}`", "Show this message and exit."


def settings_page() -> str:
    """Return the settings with their defaults and the text that stands under each."""
    schema = Settings.model_json_schema(by_alias=True)
    required = schema["required"]
    rows = (
        (
            f"`{name}`",
            "required" if name in required else f"`{_default(field.get('default'))}`",
            field.get("description", "").replace("\n\n", " "),
        )
        for name, field in schema["properties"].items()
    )
    lines = ["# Settings", "", "The chart has them under `settings`; a time is in seconds.", ""]
    return "\n".join([*lines, *table(("setting", "default", "what it is"), rows)]) + "\n"


def _default(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n...\n").strip()


def chart_page() -> str:
    """Return the values of the chart, which say themselves what they are."""
    values = (CHART / "values.yaml").read_text()
    return f"# Values of the chart\n\n```yaml\n{values}```\n"


def metrics_page() -> str:
    """Return the operator's own metrics and the chart's alerts on them."""
    objects = (
        (
            f"`{name}{'_total' * each.is_counter}`",
            ", ".join(f"`{label}`" for label in each.labels),
            each.text,
        )
        for name, each in FAMILIES.items()
    )
    fleet = FLEET_FAMILIES | {"tonnage_internal_errors_total": INTERNAL_ERRORS}
    return "\n".join(
        [
            "# Metrics",
            "",
            "On `/metrics` of the port `settings.probePort`. Labels take values from closed sets.",
            "",
            "## Of each ModelDeployment",
            "",
            "All have the labels `namespace` and `name` of the object.",
            "",
            *table(("metric", "further labels", "what it is"), objects),
            "",
            "## Of the operator",
            "",
            *table(("metric", "what it is"), ((f"`{k}`", text) for k, text in fleet.items())),
            "",
            "## Alerts",
            "",
            "Of the chart's `prometheusRule`; off by default.",
            "",
            *table(("alert", "what it says"), _alerts()),
            "",
        ]
    )


def _alerts() -> Iterator[tuple[str, str]]:
    """Yield name and description of each alert of the chart."""
    text = (CHART / "templates/prometheusrule.yaml").read_text()
    for name, rest in (each.split("\n", 1) for each in text.split("- alert: ")[1:]):
        words = rest.partition("description: >-")[2].removesuffix("{{- end }}\n")
        for pattern, value in OF_A_RELEASE.items():
            words = re.sub(pattern, value, words)
        yield f"`{name}`", " ".join(words.split())


def reasons_page() -> str:
    """Return every reason that a condition or a decision can have."""
    told = {"Types of conditions": CONDITIONS} | {
        f"Reasons: {title}": meanings for title, meanings in MEANINGS.items()
    }
    lines = ["# Conditions and reasons", "", REASONS, ""]
    for title, meanings in told.items():
        rows = ((f"`{name}`", meaning) for name, meaning in meanings.items())
        lines += [f"## {title}", "", *table(("name", "what it says"), rows), ""]
    return "\n".join(lines)


def _catalogue(title: str, kind: str, intro: str) -> str:
    """Return a table of the catalogue, sources left to the command."""
    lines = output_of(["catalog", kind, "-o", "markdown"]).splitlines()
    rows = "\n".join(line.rsplit("|", 2)[0] + "|" for line in lines)
    return f"# {title}\n\n{intro}\n\n{rows}\n"


def glossary_page() -> str:
    lines = ["# Words", "", "`tonnage explain --glossary` prints the same.", ""]
    rows = (
        (f"**{name}**", each, _code(VLLM_NAMES.get(name, ""))) for name, each in GLOSSARY.items()
    )
    return "\n".join([*lines, *table(("term", "meaning", "vLLM calls it"), rows)]) + "\n"


def _code(text: str) -> str:
    return cell(text) and f"`{text}`"


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "fields.md": fields_page,
    "command-line.md": command_page,
    "settings.md": settings_page,
    "chart.md": chart_page,
    "metrics.md": metrics_page,
    "reasons.md": reasons_page,
    "gpus.md": lambda: f"{_catalogue('GPU classes', 'gpus', GPUS)}\n{REFUSED_GPUS}\n",
    "models.md": lambda: _catalogue("Models", "models", MODELS),
    "glossary.md": glossary_page,
}
"""Pages of the reference."""
