"""What an administrator sets: read once from one file, the same for the chart and the lab."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic.config import JsonDict

from tonnage.described import DescribedModel

LABEL_NAME = (
    "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
OWN_LABELS = "^((.*[.])?tonnage[.]dev/.*|app[.]kubernetes[.]io/(name|instance|managed-by))$"
LabelValue = Annotated[
    str, Field(pattern="^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$", max_length=63)
]
DnsLabel = Annotated[str, Field(pattern="^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", max_length=63)]


ServiceAccountName = Annotated[
    str, Field(pattern="^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$", max_length=253)
]
_REPOSITORY = "^[a-z0-9][a-z0-9._-]*(:[0-9]{1,5})?(/[a-z0-9][a-z0-9._-]*)*$"
"""Without tag and digest, the registry's port apart."""


class FixedLabels(dict[str, str]):
    """Labels that nobody changes: settings are asked for by value."""

    def __hash__(self) -> int:  # type: ignore[override]
        """Return the same for equal labels."""
        return hash(frozenset(self.items()))


def _checked_labels(labels: dict[str, str]) -> FixedLabels:
    for name in labels:
        if not re.fullmatch(LABEL_NAME, name):
            raise ValueError(f"{name!r} is not the name of a label")
        if re.fullmatch(OWN_LABELS, name):
            raise ValueError(f"label {name} is Tonnage's own")
    return FixedLabels(labels)


def _checked_distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{', '.join(repeated)} must not be repeated")
    return names


Labels = Annotated[
    dict[str, LabelValue],
    Field(
        max_length=16,
        json_schema_extra={"propertyNames": {"pattern": LABEL_NAME}},
    ),
    AfterValidator(_checked_labels),
]
_DISTINCT: JsonDict = {"uniqueItems": True}
Positive = Annotated[float, Field(gt=0, le=86_400)]


class Settings(DescribedModel):
    """Settings of the operator. Every field appears in the chart's values under ``settings``."""

    prometheus_url: Annotated[str, Field(pattern=r"^https?://[^@\s]+$", max_length=512)]
    """Base address of the Prometheus that scrapes the engines. No user or password in it."""
    prometheus_token_file: str | None = None
    """File with a bearer token, read again for each tick."""
    prometheus_ca_file: str | None = None
    prometheus_selector: Annotated[str, Field(max_length=512)] = ""
    """Label matchers put into every query, such as ``cluster="eu-1"``."""
    pod_label: Annotated[str, Field(pattern="^[a-zA-Z_][a-zA-Z0-9_]*$")] = "pod"
    """Label that holds the pod's name on the engine's series."""
    namespace_label: Annotated[str, Field(pattern="^[a-zA-Z_][a-zA-Z0-9_]*$")] = "namespace"
    dcgm_pod_label: Annotated[str, Field(pattern="^[a-zA-Z_][a-zA-Z0-9_]*$")] = "exported_pod"
    """Label that holds the pod's name on the series of NVIDIA's DCGM exporter.

    Prometheus names it ``exported_pod`` unless the scrape sets ``honor_labels``.
    """
    dcgm_namespace_label: Annotated[str, Field(pattern="^[a-zA-Z_][a-zA-Z0-9_]*$")] = (
        "exported_namespace"
    )
    dcgm_namespaces: Annotated[
        tuple[DnsLabel, ...],
        Field(max_length=16, json_schema_extra=_DISTINCT),
        AfterValidator(_checked_distinct),
    ] = ("gpu-operator",)
    """Namespaces in which DCGM exporters run: what is scraped elsewhere says nothing about GPUs.

    Any pod's page may name a pod of another namespace, as the exporter's does. Empty: whoever is
    scraped is believed, as where ``dcgmNamespaceLabel`` is not ``exported_`` and
    ``namespaceLabel``: which label then is the target's is not known.
    """
    scrape_interval_s: Positive = 15
    """How often Prometheus scrapes the engines: windows and staleness are multiples of it."""
    tick_s: Positive = 15
    """How often the loop decides when nothing wakes it."""
    search_budget_s: Annotated[float, Field(ge=0.1, le=86_400)] = 5
    """Maximum time of a tick for capacity searches; the rest waits for the next tick.

    Below ``tick_s``, so that the loop rests: a new question takes some tenths of a second of CPU, a
    known one none.
    """
    writes_per_s: Annotated[float, Field(ge=1, le=1000)] = 50
    """Most writes a second that can wait: status, Events, templates, children; replicas never do.

    As many as a kubelet makes by default, and a twentieth of what an API server takes. A fleet that
    is seen for the first time is carried out at this pace: some six writes an object.
    """
    pod_monitor_labels: Labels = Field(default_factory=FixedLabels)
    """Further labels of the engines' PodMonitors, for a Prometheus that selects them by label.

    kube-prometheus-stack takes those with ``release`` and the name of its release.
    """
    scraper_namespaces: Annotated[
        tuple[DnsLabel, ...],
        Field(max_length=16, json_schema_extra=_DISTINCT),
        AfterValidator(_checked_distinct),
    ] = ()
    """Namespaces whose pods the engines' NetworkPolicies let in to scrape."""
    namespaces: Annotated[
        tuple[str, ...],
        Field(max_length=100, json_schema_extra=_DISTINCT),
        AfterValidator(_checked_distinct),
    ] = ()
    """Namespaces that are served; empty: all of them."""
    operator_namespace: str = "tonnage-system"
    """Where the Lease and the calibration are kept."""
    operator_class: DnsLabel | None = None
    """Acts on ModelDeployments of this ``spec.operatorClass`` alone; null: on those without one.

    Two releases in one cluster, in two namespaces, so leave each other's objects alone. Of two that
    serve all namespaces and one class, one leads and the other waits.
    """
    mode: Literal["full", "scaleOnly"] = "full"
    """scaleOnly: no right to create or change a pod template; only scaleTarget works."""
    engine_images: Annotated[
        tuple[Annotated[str, Field(pattern=_REPOSITORY, max_length=255)], ...],
        Field(max_length=32, json_schema_extra=_DISTINCT),
        AfterValidator(_checked_distinct),
    ] = ("vllm/vllm-openai",)
    """Repositories that engines may run from: itself, what is below it, or a whole registry.

    A spec that names another image is refused, and what runs is scaled on.
    """
    sidecar_images: Annotated[
        tuple[Annotated[str, Field(pattern=_REPOSITORY, max_length=255)], ...],
        Field(max_length=32, json_schema_extra=_DISTINCT),
        AfterValidator(_checked_distinct),
    ] = ()
    """Repositories that the further containers of ``pods.template`` may run from, as above."""
    pod_templates: bool = False
    """Whether a spec may have ``pods.template``.

    The chart says so where its admission policies are installed, which ask users for their rights.
    """
    service_account_names: Annotated[
        tuple[ServiceAccountName, ...],
        Field(max_length=32, json_schema_extra=_DISTINCT),
        AfterValidator(_checked_distinct),
    ] = ()
    """ServiceAccounts of their own namespaces that engines may run as, besides ``default``."""
    catalog_folder: str | None = None
    """Folder with TOML files of GPU classes that are added or overridden."""
    calibration_folder: str | None = None
    """Folder with files of ``tonnage calibrate``: what an engine of their key is expected to do."""
    calibration_namespaces: Annotated[int, Field(ge=1, le=1000)] = 2
    """The number of other namespaces that must have learned a constant before one uses it.

    A tenant can make its engines say anything: what they say stays in its own namespace until as
    many agree. Of two the mean counts, of three or more the median, which no single one moves far.
    """
    max_gpus: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """GPU budget of all ModelDeployments together; growth beyond it is refused."""
    scale_down_window_s: Positive = 300
    """The stabilization window: how long fewer replicas must be enough before the fleet shrinks."""
    max_scale_up_replicas: Annotated[int, Field(ge=1, le=1000)] = 8
    """Most replicas that one decision may add, unless the fleet is larger: it may double."""
    backlog_drain_s: Positive = 60
    """Least time in which the replicas that are added drain a queue, from when they are Ready.

    Where they take longer to start, twice the time of a start.
    """
    cold_start_s: Positive = 240
    """Time from scheduled to Ready that pods are expected to take, until an object's own have."""
    pending_timeout_s: Positive = 900
    """After which a pod that no node can take is given back, and not counted on before.

    Longer than a node takes to come where nodes are added for pods.
    """
    expected_hold_s: Positive = 1800
    """Time for which a fleet that has not had any traffic yet stays as spec.demand asks."""
    status_interval_s: Positive = 60
    """Least time between two status writes of an object for gauges alone."""
    speed_range: Annotated[float, Field(ge=0, le=0.99)] = 0.8
    """Plans stand on the slow end of the range that holds this share of engines.

    Of the prior's range until an object is measured, then of what the evidence leaves in doubt. 0:
    on the middle.
    """
    metrics_objects: Annotated[int, Field(ge=0, le=100_000)] = 500
    """So many ModelDeployments, the oldest, have series of their own: some 50 each."""
    log_format: Literal["text", "json"] = "text"
    """text: key=value; json: one object in each line."""
    probe_port: Annotated[int, Field(ge=1, le=65_535)] = 8081
    """Liveness, readiness and the operator's own metrics."""
