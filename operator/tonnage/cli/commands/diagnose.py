"""``tonnage diagnose``: what a bug report needs, in one file, without secrets."""

import gzip
import io
import os
import platform
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import yaml

from tonnage.api.base import GROUP, PLURAL
from tonnage.cli.commands.options import (
    CLUSTER_EXIT_CODES,
    AccessOptions,
    PrometheusOptions,
    namespace_option,
    option,
    takes,
)
from tonnage.cli.console import Failure, failing, output, remark, show
from tonnage.cli.read.live import LiveCluster, Resource, failures, leases_of
from tonnage.cli.read.manifest import block, objects
from tonnage.cli.results.shown import rules, shown, shown_events, shown_metrics
from tonnage.cluster.calls import KubernetesError, PrometheusError
from tonnage.cluster.kube import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    LEADER_WORKER_SETS,
    MODEL_DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
)
from tonnage.cluster.kube import Resource as Kind
from tonnage.cluster.lease import NAME as LEASE
from tonnage.fleet.calibration import NAME as CALIBRATION
from tonnage.manifests.names import MANAGED_LABEL, NAME_LABEL
from tonnage.redaction import REDACTED, names_in, redacted
from tonnage.units import MIB, count_of

OPERATOR: Final = "app.kubernetes.io/name=tonnage"
PORT: Final = "http"
"""Name of the port of the operator's probes and metrics."""
EVENTS_FILE: Final = "events.yaml"
METRICS_ENDING: Final = ".metrics.txt"
MOST_LOG_CHARS: Final = 4 * MIB
"""The last of a log: what is before them is left out."""
LOG_LINES: Final = "5000"
VOLUMES: Final = frozenset({"settings", "gpus", "calibrations"})
"""What else an administrator mounts may hold anything."""
T = TypeVar("T")
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


@dataclass(slots=True)
class SupportBundle:
    """What was read, as it is: of it a report writes what ``cli.results.shown`` names."""

    cluster: LiveCluster
    objects: dict[str, Sequence[Resource]] = field(default_factory=dict)
    """By the file that they are to be in."""
    texts: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def attempt(self, what: str, read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except KubernetesError as error:
            self.problems.append(f"{what}: {error}")
            return otherwise

    def list(self, what: str, path: str, selector: str = "") -> list[Resource]:
        api = self.cluster.api
        return self.attempt(what, lambda: list(api.list(path, label_selector=selector)), [])

    def keep(self, file: str, found: Iterable[Resource]) -> None:
        self.objects[file] = list(found)

    def text(self, file: str, path: str, **query: str) -> None:
        content = self.attempt(file, lambda: self.cluster.api.text(path, **query), None)
        if content is not None:
            self.texts[file] = content[-MOST_LOG_CHARS:]


def read_evidence(
    cluster: LiveCluster, namespace: str | None, options: DiagnoseOptions
) -> SupportBundle:
    """Read what may be read; ``namespace``: of the ModelDeployments, None: all."""
    where = f"namespace {namespace}" if namespace else "all namespaces"
    with failures(f"list {PLURAL}.{GROUP} in {where}"):
        models = list(cluster.api.list(MODEL_DEPLOYMENTS.path(namespace)))
    reading = SupportBundle(cluster)
    reading.keep("modeldeployments.yaml", models)
    _read_serving(reading, namespace, models)
    _read_operator(reading, options.operator_namespace, options.operator_selector)
    return reading


def _read_serving(
    reading: SupportBundle, namespace: str | None, models: Sequence[Resource]
) -> None:
    """Read what serves: workloads and pods of ours with what joins them, and Events about them."""
    names = {_name(each) for each in models}

    def keep(kind: Kind, selector: str = f"{MANAGED_LABEL}=true") -> None:
        found = reading.list(kind.plural, kind.path(namespace), selector)
        if kind is STATEFUL_SETS:  # those of LeaderWorkerSets have none of our labels
            found = [
                each for each in found if block(each, "metadata", "labels").get(NAME_LABEL) in names
            ]
        names.update(_name(each) for each in found)
        reading.keep(f"{kind.plural}.yaml", found)

    for kind in (DEPLOYMENTS, REPLICA_SETS, PODS):
        keep(kind)
    if reading.attempt("groups", lambda: reading.cluster.api.serves(LEADER_WORKER_SETS), False):
        keep(LEADER_WORKER_SETS)
        keep(STATEFUL_SETS, NAME_LABEL)
    events = reading.list("events", EVENTS.path(namespace))
    about = (each for each in events if str(block(each, "regarding").get("name", "")) in names)
    reading.keep(EVENTS_FILE, about)


def _read_operator(reading: SupportBundle, namespace: str, selector: str) -> None:
    found = reading.list("operator", DEPLOYMENTS.path(namespace), selector)
    pods = reading.list("operator's pods", PODS.path(namespace), selector)
    if not pods:
        reading.problems.append(
            f"no pod of the operator in namespace {namespace} with {selector}: see "
            "--operator-namespace and --operator-selector"
        )
    reading.keep("operator/deployments.yaml", found)
    reading.keep("operator/pods.yaml", pods)
    reading.keep("operator/settings.yaml", _config_maps(reading, namespace, _settings_of(found)))
    reading.keep("operator/calibration.yaml", _config_maps(reading, namespace, [CALIBRATION]))
    _read_lease(reading, namespace)
    for pod in pods:
        _read_pod(reading, namespace, pod)


def _read_lease(reading: SupportBundle, namespace: str) -> None:
    """Read who leads, or led last; where there is no Lease the file says so."""
    file, before = "operator/lease.yaml", len(reading.problems)
    none: list[Resource] = []
    leases = reading.attempt("lease", lambda: leases_of(reading.cluster, namespace), none)
    if leases:
        reading.keep(file, leases)
        return
    if len(reading.problems) == before:
        reading.problems.append(
            f"there is no Lease {LEASE} in namespace {namespace}, and none of an operator that "
            "serves all namespaces: none has run, or its namespace was deleted"
        )
    reading.texts[file] = f"# {reading.problems[-1]}\n"


def _config_maps(
    reading: SupportBundle, namespace: str, names: Iterable[str]
) -> Iterator[Resource]:
    for name in names:
        path = CONFIG_MAPS.path(namespace, name)
        found = reading.attempt(name, lambda path=path: reading.cluster.api.get(path), None)  # type: ignore[misc]
        if found is not None:
            yield found


def _settings_of(deployments: Iterable[Resource]) -> Iterator[str]:
    """Yield the names of the ConfigMaps of the chart's own that the operator mounts."""
    for each in deployments:
        for volume in objects(block(each, "spec", "template", "spec"), "volumes"):
            config_map = block(volume, "configMap")
            if volume.get("name") in VOLUMES and config_map.get("name"):
                yield str(config_map["name"])


def _read_pod(reading: SupportBundle, namespace: str, pod: Resource) -> None:
    name = _name(pod)
    log = PODS.path(namespace, name, "log")
    reading.text(f"operator/{name}.log", log, tailLines=LOG_LINES)
    statuses = objects(block(pod, "status"), "containerStatuses")
    if any(each.get("restartCount") for each in statuses):
        reading.text(f"operator/{name}.previous.log", log, tailLines=LOG_LINES, previous="true")
    ports = (
        int(port["containerPort"])
        for container in objects(block(pod, "spec"), "containers")
        for port in objects(container, "ports")
        if port.get("name") == PORT
    )
    if port := next(ports, None):
        page = PODS.path(namespace, f"{name}:{port}", "proxy/metrics")
        reading.text(f"operator/{name}{METRICS_ENDING}", page)


def _name(found: Resource) -> str:
    return str(block(found, "metadata").get("name"))


if TYPE_CHECKING:
    from tonnage.settings import Settings


@click.command(help=HELP)
@takes(DiagnoseOptions)
def diagnose(*, options: DiagnoseOptions) -> None:
    now_s = time.time()
    moment = datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%dT%H%M%SZ")
    path = options.target or Path(f"tonnage-diagnose-{moment}{ENDING}")
    _check(path)
    cluster = options.access.connect()
    namespace = None if options.is_all else options.namespace or cluster.namespace
    evidence = read_evidence(cluster, namespace, options)
    if options.prometheus_url is not None:
        asked = options.prometheus.settings(options.prometheus_url)
        evidence.texts[SERIES_FILE] = _series(asked, evidence)
    about = {
        "written": moment,
        "tonnage": version("tonnage"),
        "python": platform.python_version(),
        "kubernetes": _kubernetes(cluster),
        "namespace": namespace or "all",
        "operator namespace": options.operator_namespace,
    }
    files = _files_of(evidence, about)
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
