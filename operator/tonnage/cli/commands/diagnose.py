"""``tonnage diagnose``: what a bug report needs, in one file, without secrets."""

import gzip
import io
import os
import platform
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import click
import yaml

from tonnage.cli.answers.redaction import redact, redacted_text
from tonnage.cli.commands.options import (
    CLUSTER_EXIT_CODES,
    AccessOptions,
    namespace_option,
    option,
    takes,
)
from tonnage.cli.console import Failure, failing, output, remark, show
from tonnage.cli.read.evidence import OPERATOR, Evidence, Wanted, read_evidence
from tonnage.cli.read.live import LiveCluster
from tonnage.cluster.errors import KubernetesError
from tonnage.units import count_of

ENDING: Final = ".tar.gz"
MODE: Final = 0o600

HELP: Final = f"""Collect what a bug report needs into one file, without secrets.

Reads, and writes nothing to the cluster: ModelDeployments with their status, Deployments,
ReplicaSets and pods of Tonnage, Events about them, and of the operator its settings, log, metrics,
Lease and calibration, with the versions of everything. What may not be read is named in about.yaml,
and the rest is collected.

Left out: values of environment variables, Secrets, tokens, passwords, image pull secrets, and
whatever looks like a credential in logs and arguments. Names of namespaces, models, nodes and
images stay, and of Secrets where a message tells that another is used. Look through the file
before you send it to anybody.

\b
Examples:
  tonnage diagnose -A
  tonnage diagnose -n serving --save report.tar.gz
  tonnage diagnose -n serving --operator-namespace capacity --log-lines 20000

{CLUSTER_EXIT_CODES}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnoseOptions:
    """What the command was given."""

    namespace: str | None = namespace_option()
    is_all: bool = option("-A", "--all-namespaces", is_flag=True, help="All namespaces.")
    operator_namespace: str = option(
        "--operator-namespace",
        default="tonnage-system",
        help="Namespace that the chart is installed in.",
    )
    operator_selector: str = option(
        "--operator-selector",
        default=OPERATOR,
        metavar="LABEL=VALUE",
        help="Label of the operator's Deployment and pods.",
    )
    log_lines: int = option(
        "--log-lines",
        type=click.IntRange(min=1, max=500_000),
        default=5000,
        help="Last lines of each log of the operator.",
    )
    target: Path | None = option(
        "--save",
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help=f"File to write, {ENDING}. Default: tonnage-diagnose-TIME{ENDING} in this folder.",
    )
    access: AccessOptions


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
        log_lines=options.log_lines,
    )
    evidence = read_evidence(cluster, wanted)
    files = _files_of(evidence, _about(cluster, wanted, moment))
    folder = path.name.removesuffix(ENDING)
    _write(path, _archive(files, folder=folder, now_s=now_s))
    console = output()
    for name, text in files.items():
        show(console, f"{name}  {count_of(len(text.splitlines()), 'line')}")
    for problem in evidence.problems:
        remark(f"Note: not read: {problem}")
    remark(f"Wrote {path}. Secrets are left out as far as they can be known: look through it")


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
        said = cluster.api.document("/version") or {}
    except KubernetesError as error:
        return f"not known: {error}"
    return str(said.get("gitVersion"))


def _files_of(evidence: Evidence, about: Mapping[str, Any]) -> dict[str, str]:
    """Return {name: text} of every file; the only way from what was read to what is written."""
    problems = [redacted_text(each) for each in evidence.problems]
    first = {**about, "not read": problems}
    return {
        "about.yaml": _yaml([first]),
        **{name: _yaml(redact(found)) for name, found in sorted(evidence.objects.items())},
        **{name: redacted_text(text) for name, text in sorted(evidence.texts.items())},
    }


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
