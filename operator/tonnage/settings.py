"""What an administrator sets: read once from one file, the same for the chart and the lab."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic.config import ConfigDict

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
Repository = Annotated[str, Field(pattern=_REPOSITORY, max_length=255)]
"""Without tag and digest, the registry's port apart."""
LabelName = Annotated[str, Field(pattern="^[a-zA-Z_][a-zA-Z0-9_]*$")]


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


def _distinct(most: int) -> tuple[object, ...]:
    """Return what is said of a field with so many values at most, of which none is repeated."""
    bounds = Field(max_length=most, json_schema_extra={"uniqueItems": True})
    return bounds, AfterValidator(_checked_distinct)


Labels = Annotated[
    dict[str, LabelValue],
    Field(max_length=16, json_schema_extra={"propertyNames": {"pattern": LABEL_NAME}}),
    AfterValidator(_checked_labels),
]
_HEADER_NAME = "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
_OF_THE_CLIENT = "(?i)host|connection|accept-encoding|content-.*|transfer-.*|proxy-connection"
_FROM_FILES = "(?i).*(authorization|cookie|token|secret|password|credential|key).*"
Positive = Annotated[float, Field(gt=0, le=86_400)]


def _without_user(url: object) -> object:
    if isinstance(url, str) and re.match("[^/]*//[^/]*@", url):
        raise ValueError("has a user or password: give them as files in prometheusAuth.basic")
    return url


SecretFile = Annotated[str, Field(pattern="^/.", max_length=512)]
HeaderName = Annotated[str, Field(pattern=_HEADER_NAME)]


def _checked_names(names: dict[str, str]) -> FixedLabels:
    for name in names:
        if re.fullmatch(_OF_THE_CLIENT, name):
            raise ValueError(f"header {name} is set by the client itself")
    return FixedLabels(names)


def _checked_headers(headers: dict[str, str]) -> FixedLabels:
    for name in headers:
        if re.fullmatch(_FROM_FILES, name):
            raise ValueError(f"header {name} may be a secret: name a file of it in headerFiles")
    return _checked_names(headers)


class BasicAuth(DescribedModel):
    """User and password, such as those of Grafana Cloud."""

    username_file: SecretFile
    password_file: SecretFile


class OAuth2(DescribedModel):
    """Client credentials (RFC 6749, section 4.4)."""

    token_url: Annotated[str, Field(pattern=r"^https?://[^@\s]+$", max_length=512)]
    client_id_file: SecretFile
    client_secret_file: SecretFile
    scopes: Annotated[tuple[Annotated[str, Field(max_length=256)], ...], Field(max_length=16)] = ()
    parameters: Annotated[
        dict[str, Annotated[str, Field(max_length=512)]],
        Field(max_length=16),
        AfterValidator(FixedLabels),
    ] = Field(default_factory=FixedLabels)
    """Further parameters of the request for a token, such as ``audience``."""


class ClientCertificate(DescribedModel):
    """A certificate by which the server knows the operator (mutual TLS), and its key, in PEM."""

    certificate_file: SecretFile
    key_file: SecretFile


class PodLabels(DescribedModel):
    """The labels with a pod's namespace and name on the series of some monitor."""

    namespace: LabelName
    pod: LabelName


class OtherSeries(DescribedModel):
    """Engines' series that a monitor stores in another way than the usual one."""

    prefixes: Annotated[
        tuple[Annotated[str, Field(pattern="^[a-zA-Z_][a-zA-Z0-9_:]*$", max_length=64)], ...],
        *_distinct(4),
    ] = ()
    """What precedes ``vllm:``: ``kserve_`` in KServe's LLMInferenceService."""
    labels: Annotated[tuple[PodLabels, ...], Field(max_length=4)] = ()
    """Further pairs of labels. A series belongs to the first pair that names a managed pod."""


class PrometheusAuth(DescribedModel):
    """How the operator says to Prometheus who it is. Secrets are files."""

    basic: BasicAuth | None = None
    oauth2: OAuth2 | None = None
    client_certificate: ClientCertificate | None = None
    headers: Annotated[
        dict[HeaderName, Annotated[str, Field(pattern="^[!-~]([ -~]*[!-~])?$", max_length=1024)]],
        Field(max_length=16),
        AfterValidator(_checked_headers),
    ] = Field(default_factory=FixedLabels)
    """Further headers that are no secrets, such as X-Scope-OrgID."""
    header_files: Annotated[
        dict[HeaderName, SecretFile], Field(max_length=16), AfterValidator(_checked_names)
    ] = Field(default_factory=FixedLabels)
    """Further headers by the file that has their value."""


class Settings(DescribedModel):
    """Settings of the operator. Every field appears in the chart's values under ``settings``."""

    model_config = ConfigDict(hide_input_in_errors=True)

    prometheus_url: Annotated[
        str, Field(pattern=r"^https?://[^@\s]+$", max_length=512), BeforeValidator(_without_user)
    ]
    """The base URL of the Prometheus that scrapes the engines, without user or password."""
    prometheus_token_file: str | None = None
    """The file with the bearer token for it, read again for each tick."""
    prometheus_ca_file: str | None = None
    prometheus_auth: PrometheusAuth | None = None
    """Other credentials than a bearer token: at most one of ``basic`` and ``oauth2``.

    ``clientCertificate``, ``headers`` and ``headerFiles`` go with any of them, and with the token.
    All files are read again for each tick.
    """
    prometheus_selector: Annotated[str, Field(max_length=512)] = ""
    """Label matchers that are added to every query, such as ``cluster="eu-1"``."""
    pod_label: LabelName = "pod"
    """The label with the pod's name on the engines' series."""
    namespace_label: LabelName = "namespace"
    other_series: OtherSeries | None = None
    """Other prefixes and labels that some engines' series have. null: none.

    ``tonnage diagnose --prometheus`` lists what there is. By a label that the scraped page sets,
    such as ``exported_pod``, any scraped pod can claim to report about another.
    """
    dcgm_pod_label: LabelName = "exported_pod"
    """The label with the pod's name on the series of NVIDIA's DCGM exporter.

    Prometheus names it ``exported_pod`` unless the scrape sets ``honor_labels``.
    """
    dcgm_namespace_label: LabelName = "exported_namespace"
    dcgm_namespaces: Annotated[tuple[DnsLabel, ...], *_distinct(16)] = ("gpu-operator",)
    """The namespaces of the DCGM exporters. GPU metrics scraped elsewhere are ignored.

    Any scraped pod can claim to report about a pod of another namespace. Empty: GPU metrics count
    wherever they come from, and so if ``dcgmNamespaceLabel`` is not ``exported_`` followed by
    ``namespaceLabel``: then Tonnage cannot tell which label names the exporter's namespace.
    """
    scrape_interval_s: Positive = 15
    """The scrape interval of the engines. Windows and staleness are multiples of it."""
    tick_s: Positive = 15
    """The maximum time between two decisions. A change of an object starts one at once."""
    search_budget_s: Annotated[float, Field(ge=0.1, le=86_400)] = 5
    """The maximum time of a tick for capacity searches; the rest waits for the next tick.

    It should be below ``tickS``. A new search takes some tenths of a second of CPU; its result is
    cached.
    """
    writes_per_s: Annotated[float, Field(ge=1, le=1000)] = 50
    """The maximum rate of writes: status, Events, templates, children. Replicas have no limit.

    50 is what a kubelet makes by default, and a twentieth of what an API server takes. An object
    that is new to the operator takes some six writes.
    """
    pod_monitor_labels: Labels = Field(default_factory=FixedLabels)
    """Further labels of the engines' PodMonitors, for a Prometheus that selects them by label.

    kube-prometheus-stack selects the label ``release`` with the name of its release.
    """
    scraper_namespaces: Annotated[tuple[DnsLabel, ...], *_distinct(16)] = ()
    """The namespaces whose pods the engines' NetworkPolicies allow to scrape."""
    namespaces: Annotated[tuple[str, ...], *_distinct(100)] = ()
    """The namespaces that the operator serves. Empty: all of them."""
    operator_namespace: str = "tonnage-system"
    """The namespace of the Lease and of the saved calibration."""
    operator_class: DnsLabel | None = None
    """The ``spec.operatorClass`` of the objects that it serves. null: objects without a class.

    So two releases in two namespaces can share a cluster. Of two releases that serve all
    namespaces and the same class, one leads and the other waits.
    """
    mode: Literal["full", "scaleOnly", "recommend"] = "full"
    """scaleOnly: the operator only scales a ``scaleTarget``, and may not create or change pods.

    recommend: it writes the status of objects, and treats Auto and Approve as Recommend.
    """
    engine_images: Annotated[tuple[Repository, ...], *_distinct(32)] = ("vllm/vllm-openai",)
    """The allowed repositories of engine images: a repository, a path above it, or a registry.

    A spec with another image is refused. Running replicas still scale.
    """
    sidecar_images: Annotated[tuple[Repository, ...], *_distinct(32)] = ()
    """The allowed repositories of further containers in ``pods.template``, in the same form."""
    pod_templates: bool = False
    """Whether a spec may have ``pods.template``, whose writer runs code in the engines.

    The chart sets it with its admission policies, which check the rights of whoever writes a spec.
    """
    trust_remote_code: bool = False
    """Whether ``engine.args`` may have --trust-remote-code: it runs code of a model's repository.

    false: such a spec is refused. Running replicas still scale.
    """
    service_account_names: Annotated[tuple[ServiceAccountName, ...], *_distinct(32)] = ()
    """ServiceAccounts that engines may use, in the object's namespace, besides ``default``."""
    catalog_folder: str | None = None
    """The folder with TOML files of GPU classes to add or override."""
    calibration_folder: str | None = None
    """The folder with files of ``tonnage calibrate``, the measured speed of engines."""
    calibration_namespaces: Annotated[int, Field(ge=1, le=1000)] = 2
    """The number of other namespaces that must have learned a constant before one uses it.

    A tenant can make its engines report anything, so one namespace's reports alone do not count for
    others. Of two namespaces the mean counts, of three or more the median.
    """
    max_gpus: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """The GPU budget of all ModelDeployments together. No fleet grows beyond it. null: none."""
    scale_down_window_s: Positive = 300
    """The stabilization window: how long fewer replicas must be enough before the fleet shrinks."""
    max_scale_up_replicas: Annotated[int, Field(ge=1, le=1000)] = 8
    """The maximum number of replicas that one decision adds. A larger fleet may double."""
    backlog_drain_s: Positive = 60
    """The minimum time in which added replicas drain a queue, once they are Ready.

    A cold start of 5 min raises it to 5 min, one of 10 min to 20 min (by its square).
    """
    cold_start_s: Positive = 240
    """The expected time from the scheduling of a pod until it is Ready, until it is measured."""
    pending_timeout_s: Positive = 900
    """The time after which a pod that no node fits is removed and its replica no longer planned.

    Set it longer than the cluster autoscaler takes to add a node.
    """
    expected_hold_s: Positive = 1800
    """How long a fleet without any traffic yet keeps the replicas that spec.demand needs."""
    status_interval_s: Positive = 60
    """The minimum time between two status writes of an object if only measured values changed."""
    speed_range: Annotated[float, Field(ge=0, le=0.99)] = 0.8
    """The prediction interval of engine speed at whose slow end replicas are counted: 0.8 is 80 %.

    Flags are those of its middle. It is the prior's interval until the engines are measured, and
    narrows as evidence grows. 0: the middle of the interval.
    """
    metrics_objects: Annotated[int, Field(ge=0, le=100_000)] = 500
    """The number of ModelDeployments, the oldest first, with metrics of their own: some 50 each."""
    log_format: Literal["text", "json"] = "text"
    """The log format: text has key=value pairs, json one object per line."""
    probe_port: Annotated[int, Field(ge=1, le=65_535)] = 8081
    """The port of liveness, readiness and the operator's own metrics."""

    @property
    def pod_labels(self) -> tuple[tuple[str, str], ...]:
        """Return the pairs of labels, with namespace and pod, in the order in which they count."""
        others = self.other_series.labels if self.other_series else ()
        pairs = ((each.namespace, each.pod) for each in others)
        return ((self.namespace_label, self.pod_label), *pairs)

    @property
    def series_prefixes(self) -> tuple[str, ...]:
        return self.other_series.prefixes if self.other_series else ()

    @model_validator(mode="after")
    def _has_one_identity(self) -> "Settings":
        auth = self.prometheus_auth or PrometheusAuth()
        given = {
            "prometheusTokenFile": self.prometheus_token_file,
            "prometheusAuth.basic": auth.basic,
            "prometheusAuth.oauth2": auth.oauth2,
        }
        names = [name for name, value in given.items() if value is not None]
        if len(names) > 1:
            raise ValueError(f"{' and '.join(names)} each set the same header: give one of them")
        return self
