"""``tonnage diagnose``: what a bug report needs, in one file, without secrets."""

import gzip
import io
import os
import platform
import tarfile
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import yaml

from tonnage.cli.commands.options import (
    CLUSTER_EXIT_CODES,
    AccessOptions,
    PrometheusOptions,
    namespace_option,
    option,
    takes,
)
from tonnage.cli.console import Failure, failing, output, remark, show
from tonnage.cli.read.live import LiveCluster
from tonnage.cli.read.nested import block
from tonnage.cli.read.support_bundle import (
    EVENTS_FILE,
    METRICS_ENDING,
    OPERATOR,
    SupportBundle,
    Wanted,
    read_evidence,
)
from tonnage.cli.results.shown import rules, shown, shown_events, shown_metrics
from tonnage.cluster.calls import KubernetesError, PrometheusError
from tonnage.redaction import REDACTED, names_in, redacted
from tonnage.units import count_of

if TYPE_CHECKING:
    from tonnage.settings import Settings

ENDING: Final = ".tar.gz"
MODE: Final = 0o600
SERIES_FILE: Final = "series.txt"

HELP: Final = f"""Collect what a bug report needs into one file.

Reads ModelDeployments with their status, Deployments, ReplicaSets and pods of Tonnage, Events about
them, and the operator's settings, log, metrics, Lease and calibration, with all versions. Writes
nothing to the cluster. Objects without read access are named in about.yaml, and the rest is
collected.

Of objects it writes the fields of an allow list, such as names, images, resources, conditions and
harmless vLLM flags; of environment variables and volumes only the names. It omits commands,
headers, other labels and annotations, and names of Secrets.

Of texts, such as messages and logs, it writes words that vLLM, Kubernetes and Tonnage use, numbers,
and names of objects that it read. Other words become "{REDACTED}". A password that is such a word,
number or name is not recognized: look through the file before you send it.

\b
Examples:
  tonnage diagnose -A
  tonnage diagnose -n serving --save report.tar.gz
  tonnage diagnose -n serving --operator-namespace capacity
  tonnage diagnose -A --prometheus http://localhost:9090

{CLUSTER_EXIT_CODES}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnoseOptions:
    """What the command was given."""

    # fmt: off
    namespace: str | None = namespace_option()
    is_all: bool = option("-A", "--all-namespaces", is_flag=True, help="All namespaces.")
    operator_namespace: str = option("--operator-namespace", default="tonnage-system",
        help="Namespace that the chart is installed in.")
    operator_selector: str = option("--operator-selector", default=OPERATOR, metavar="LABEL=VALUE",
        help="Label of the operator's Deployment and pods.")
    target: Path | None = option("--save", metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help=f"File to write, {ENDING}. Default: tonnage-diagnose-TIME{ENDING} in this folder.")
    prometheus_url: str | None = option("--prometheus", metavar="URL",
        help="Say which engines' series are in this Prometheus, and which of them are read.")
    prometheus: PrometheusOptions
    access: AccessOptions
    # fmt: on


@click.command(help=HELP)
@takes(DiagnoseOptions)
def diagnose(*, options: DiagnoseOptions) -> None:
    now_s = time.time()
    moment = datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%dT%H%M%SZ")
    path = options.target or Path(f"tonnage-diagnose-{moment}{ENDING}")
    _check(path)
    cluster = options.access.connect()
    wanted = Wanted(
        namespace=None if options.is_all else options.namespace or cluster.namespace,
        operator_namespace=options.operator_namespace,
        operator_selector=options.operator_selector,
    )
    evidence = read_evidence(cluster, wanted)
    if options.prometheus_url is not None:
        asked = options.prometheus.settings(options.prometheus_url)
        evidence.texts[SERIES_FILE] = _series(asked, evidence)
    files = _files_of(evidence, _about(cluster, wanted, moment))
    folder = path.name.removesuffix(ENDING)
    _write(path, _archive(files, folder=folder, now_s=now_s))
    console = output()
    for name, text in files.items():
        show(console, f"{name}  {count_of(len(text.splitlines()), 'line')}")
    for problem in evidence.problems:
        remark(f"Note: not read: {problem}")
    remark(f"Wrote {path}. Only fields and words of lists are in it: look through it all the same")


def _series(asked: "Settings", evidence: SupportBundle) -> str:
    """Show which engines' series there are, and return it as text."""
    from tonnage.cli.read.scraped_series import (  # noqa: PLC0415  (slow)
        operator_settings,
        series_found,
    )

    operators = operator_settings(evidence.objects["operator/settings.yaml"], asked)
    places = (block(each, "metadata") for each in evidence.objects["pods.yaml"])
    pods = {(str(each.get("namespace")), str(each.get("name"))) for each in places}
    with failing(PrometheusError, where="--prometheus: "):
        lines = list(series_found(asked, operators, pods))
    for line in lines:
        remark(f"Series: {line}")
    return "\n".join(lines)


def _check(path: Path) -> None:
    if not path.name.endswith(ENDING):
        raise Failure(f"--save {path}: the name of the file ends in {ENDING}")
    if path.exists():
        raise Failure(f"--save {path} exists, and is not overwritten")
    if not path.parent.is_dir():
        raise Failure(f"--save {path}: there is no folder {path.parent}")


def _about(cluster: LiveCluster, wanted: Wanted, moment: str) -> Mapping[str, Any]:
    return {
        "written": moment,
        "tonnage": version("tonnage"),
        "python": platform.python_version(),
        "kubernetes": _kubernetes(cluster),
        "namespace": wanted.namespace or "all",
        "operator namespace": wanted.operator_namespace,
    }


def _kubernetes(cluster: LiveCluster) -> str:
    try:
        reply = cluster.api.document("/version") or {}
    except KubernetesError as error:
        return f"not known: {error}"
    return str(reply.get("gitVersion"))


def _files_of(evidence: SupportBundle, about: Mapping[str, Any]) -> dict[str, str]:
    """Return {name: text} of every file; the only way from what was read to what is written."""
    found = {name: shown_events(each) if name == EVENTS_FILE else each
             for name, each in sorted(evidence.objects.items())}  # fmt: skip
    known = _known(found)
    objects = {name: shown(each, rules(name, known)) for name, each in found.items()}
    problems = [redacted(each, known) for each in evidence.problems]
    num_events = len(evidence.objects.get(EVENTS_FILE, ())) - len(found.get(EVENTS_FILE, ()))
    first = {**about, "not read": problems, "Events of other reasons": num_events}
    return {
        "about.yaml": _yaml([first]),
        **{name: _yaml(each) for name, each in objects.items()},
        **{name: _text_of(name, text, known) for name, text in sorted(evidence.texts.items())},
    }


def _known(found: Mapping[str, Any]) -> frozenset[str]:
    """Return the names that are written of objects, which messages repeat."""
    nothing: frozenset[str] = frozenset()
    written = (shown(each, rules(name, nothing)) for name, each in found.items())
    return frozenset(each for part in written for each in names_in(part))


def _text_of(name: str, text: str, known: Set[str]) -> str:
    is_page = name.endswith(METRICS_ENDING)
    return shown_metrics(text, known) if is_page else f"{redacted(text, known)}\n"


def _yaml(objects: Sequence[Any]) -> str:
    text: str = yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True)
    return text


def _archive(files: Mapping[str, str], *, folder: str, now_s: float) -> bytes:
    """Return a tar.gz of files in one folder."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, text in files.items():
            content = text.encode()
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mtime, member.mode = len(content), int(now_s), MODE
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), mtime=int(now_s))


def _write(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, and only where there is none."""
    with (
        failing(OSError, where=f"--save {path}: "),
        os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE), "wb") as file,
    ):
        file.write(content)
