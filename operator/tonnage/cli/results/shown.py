"""What of an object, a page or a log a bug report writes: the fields named here, and nothing else.

A field that is not named is left out with all that it holds, so that a secret in a place that
nobody thought of stays where it is. Of a field that is named, a name is written if it looks like
one, and other text as ``tonnage.redaction`` leaves it.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cache
from typing import Any, Final, NamedTuple

from tonnage.api.fields import ALLOWED_FLAGS
from tonnage.api.spec import Spec
from tonnage.api.status import Status
from tonnage.cli.console import ManifestError
from tonnage.cli.read.strict_yaml import read_documents
from tonnage.manifests.arguments import CAPACITY_FLAGS, argument_pairs
from tonnage.manifests.names import (
    ADOPT_LABEL,
    DELETION_COST_ANNOTATION,
    DIGEST_ANNOTATION,
    DRAIN_ANNOTATION,
    FLAGS_ANNOTATION,
    MANAGED_LABEL,
    OWNER_LABEL,
    SPEC_ANNOTATION,
    TEMPLATE_ANNOTATION,
)
from tonnage.redaction import NAMING, REDACTED, is_name, names_secret_last, redacted
from tonnage.settings import Settings

FIELDS: Final = {
    "of all": """apiVersion kind metadata name namespace uid generation resourceVersion
        creationTimestamp deletionTimestamp ownerReferences controller labels annotations spec
        status conditions type reason message lastTransitionTime lastUpdateTime observedGeneration
        lastProbeTime""",
    "of what runs": """replicas template paused minReadySeconds revisionHistoryLimit
        progressDeadlineSeconds strategy rollingUpdate maxSurge maxUnavailable
        leaderWorkerTemplate size leaderTemplate workerTemplate restartPolicy startupPolicy
        rolloutStrategy rolloutStrategyConfiguration partition serviceName podManagementPolicy
        readyReplicas updatedReplicas availableReplicas unavailableReplicas fullyLabeledReplicas
        currentReplicas currentRevision updateRevision collisionCount containers initContainers
        image imagePullPolicy args env resources limits requests ports containerPort protocol
        startupProbe readinessProbe livenessProbe periodSeconds failureThreshold timeoutSeconds
        initialDelaySeconds successThreshold volumes volumeMounts readOnly nodeName schedulerName
        priority priorityClassName preemptionPolicy runtimeClassName serviceAccountName
        terminationGracePeriodSeconds hostNetwork hostIPC hostPID shareProcessNamespace
        automountServiceAccountToken tolerations operator effect key tolerationSeconds phase
        qosClass startTime containerStatuses initContainerStatuses ready started restartCount state
        lastState waiting running terminated exitCode signal startedAt finishedAt nominatedNodeName
        securityContext runAsUser runAsGroup runAsNonRoot fsGroup fsGroupChangePolicy
        allowPrivilegeEscalation readOnlyRootFilesystem privileged""",
    "of Events": """regarding note action count series lastObservedTime eventTime deprecatedCount
        deprecatedFirstTimestamp deprecatedLastTimestamp reportingController""",
    "of a Lease": """holderIdentity leaseDurationSeconds leaseTransitions acquireTime renewTime""",
    "of ConfigMaps": "data",
}
"""A field is written wherever it occurs below fields that are written."""
ALL_FIELDS: Final = frozenset(" ".join(FIELDS.values()).split())
OF_MODELS: Final = "modeldeployments.yaml"
"""The file of objects whose fields are those of the API, beside those of all."""
OWN_CONTROLLER: Final = "tonnage.dev/operator"
LABELS: Final = frozenset(
    {MANAGED_LABEL, OWNER_LABEL, ADOPT_LABEL, "app.kubernetes.io/name", "pod-template-hash",
     "app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "app.kubernetes.io/version",
     "leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-index",
     "leaderworkerset.sigs.k8s.io/worker-index", "tonnage.dev/operator-class"}
)  # fmt: skip
DIGESTS: Final = frozenset({DIGEST_ANNOTATION, TEMPLATE_ANNOTATION})
ANNOTATIONS: Final = DIGESTS | {
    DRAIN_ANNOTATION, FLAGS_ANNOTATION, DELETION_COST_ANNOTATION, SPEC_ANNOTATION,
    "deployment.kubernetes.io/revision", "deployment.kubernetes.io/desired-replicas",
}  # fmt: skip
NAMES: Final = NAMING | {"uid", "holderIdentity"}
NAMED_ONLY: Final = frozenset(
    {"huggingFaceTokenSecret", "apiKeySecret", "imagePullSecrets", "nodeSelector", "gpuNodes"}
)
"""Written as being there."""
MODEL_FLAGS: Final = frozenset({"--model", "--served-model-name", "--revision", "--tokenizer"})
LISTS: Final = {
    "reasons of Events": """
        BackOff Created CreateContainerConfigError ErrImageNeverPull Evicted
        ExceededGracePeriod Failed FailedAttachVolume FailedBinding FailedCreate
        FailedCreatePodSandBox FailedDelete FailedKillPod FailedMapVolume FailedMount
        FailedPlacement FailedPostStartHook FailedPreStopHook FailedScheduling FailedSync
        FailedValidation HostPortConflict InspectFailed InvalidDiskCapacity Killing
        NetworkNotReady NodeNotReady NodeNotSchedulable NotTriggerScaleUp OOMKilling
        Preempted Preempting ProbeWarning Pulled Pulling ProvisioningFailed
        ReplicaSetCreateError Rebooted RollingPods Scaled ScalingReplicaSet Scheduled
        Started SuccessfulAttachVolume SuccessfulCreate SuccessfulDelete
        SuccessfulMountVolume SystemOOM TaintManagerEviction TriggeredScaleUp Unhealthy
        UnexpectedAdmissionError VolumeResizeFailed WaitForFirstConsumer WaitForPodScheduled
        NodeAffinity OutOfcpu OutOfmemory OutOfpods FailedUpdate GroupsProgressing
        CreatingRevision GroupsUpdating RecreateGroupOnPodRestart
    """,
    "flags": """
        dtype kv-cache-dtype quantization nnodes node-rank master-port headless enable-lora
        max-loras max-lora-rank speculative-config shutdown-timeout custom-histogram-buckets
        port kv-transfer-config scheduling-policy trust-remote-code disable-log-stats
    """,
    "kinds of volumes": """
        configMap csi downwardAPI emptyDir ephemeral hostPath image nfs
        persistentVolumeClaim projected secret
    """,
}
"""What is written of Events, of the flags of vLLM with a value, and of volumes."""
EVENT_REASONS, FLAG_NAMES, VOLUME_KINDS = (frozenset(each.split()) for each in LISTS.values())
FLAGS: Final = CAPACITY_FLAGS | MODEL_FLAGS | {f"--{n}" for n in (*ALLOWED_FLAGS, *FLAG_NAMES)}
"""Those of vLLM whose values open nothing."""

METRICS: Final = re.compile(r"(?:# (?:HELP|TYPE) )?(?:tonnage|process|python)_")
_DIGEST: Final = re.compile(r"[0-9a-f]{16}")
_HASH: Final = re.compile(r"[0-9a-f]{12,40}")
"""Key of what was learned."""
_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]*")
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LONG_NUMBER: Final = re.compile(r"\d{7}")
MOST_DIGITS: Final = 12
"""Of a whole number: more are those of a card, and no number of bytes of a GPU."""
_AMOUNT: Final = re.compile(r"\d{1,15}(?:\.\d{1,3})?(?:m|[kMGTPE]i?)?")


class Rules(NamedTuple):
    """What is written of an object."""

    fields: Set[str]
    known: Set[str]
    """Names that messages may repeat."""


def rules(file: str, known: Set[str]) -> Rules:
    return Rules(_fields_of_models() if file == OF_MODELS else ALL_FIELDS, known)


def shown(value: Any, by: Rules) -> Any:
    """Return what is written of an object, or of a part of one."""
    if isinstance(value, Mapping):
        return {key: _of_field(key, each, by) for key, each in value.items() if key in by.fields}
    if isinstance(value, list | tuple):
        return [shown(each, by) for each in value]
    return redacted(value, by.known) if isinstance(value, str) else value


def shown_events(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the Events that a report needs: by their reason, and those of Tonnage."""
    return [
        each
        for each in events
        if each.get("reason") in EVENT_REASONS or each.get("reportingController") == OWN_CONTROLLER
    ]


def shown_metrics(page: str, known: Set[str]) -> str:
    """Return the lines of the operator's own series."""
    return "".join(
        f"{redacted(line, known)}\n" for line in page.splitlines() if METRICS.match(line)
    )


@cache
def _fields_of_models() -> frozenset[str]:
    schemas = (each.model_json_schema() for each in (Spec, Status))
    return frozenset(FIELDS["of all"].split()).union(*map(_properties, schemas))


def _properties(schema: Mapping[str, Any]) -> Iterator[str]:
    for each in (schema, *schema.get("$defs", {}).values()):
        yield from each.get("properties", ())


def _of_field(key: str, value: Any, by: Rules) -> Any:
    if key in NAMED_ONLY:
        return REDACTED
    if found := SPECIAL.get(key):
        return found(value, by)
    if key in NAMES and isinstance(value, str):
        return _name(value)
    return shown(value, by)


def _name(value: object) -> str:
    is_written = isinstance(value, str) and (is_name(value) or _UUID.fullmatch(value) is not None)
    return str(value) if is_written else REDACTED


def _labels(value: Any, by: Rules) -> Any:  # noqa: ARG001
    return {key: _name(each) for key, each in _items(value) if key in LABELS}


def _annotations(value: Any, by: Rules) -> Any:
    return {key: _annotation(key, str(each), by) for key, each in _items(value)
            if key in ANNOTATIONS}  # fmt: skip


def _annotation(key: str, text: str, by: Rules) -> str:
    if key in DIGESTS:
        return text if _DIGEST.fullmatch(text) else REDACTED
    if key not in {SPEC_ANNOTATION, FLAGS_ANNOTATION}:
        return redacted(text, by.known)
    try:
        return json.dumps(shown(json.loads(text), by._replace(fields=_fields_of_models())))
    except (ValueError, RecursionError):
        return REDACTED


def _variables(value: Any, by: Rules) -> Any:  # noqa: ARG001
    """Return the names of variables, which say that they are set."""
    names = [str(each.get("name")) for each in value or () if isinstance(each, Mapping)]
    return [{"name": name if _VARIABLE.fullmatch(name) and is_name(name) else REDACTED}
            for name in names]  # fmt: skip


def _arguments(value: Any, by: Rules) -> Any:
    """Return the model and the flags of a command line, with the values of those that are known."""
    words = [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
    first = [word for word in words[:1] if not word.startswith("-")]
    return [
        *(_name(word) if word in by.known else redacted(word, by.known) for word in first),
        *(_argument(flag, each, by) for flag, each in argument_pairs(words)),
    ]


def _argument(flag: str, value: str, by: Rules) -> str:
    if flag not in FLAGS:
        return redacted(flag)
    if not value or value.startswith("--"):
        return flag
    if flag in MODEL_FLAGS:
        return f"{flag}={_name(value)}"
    is_amount = flag in CAPACITY_FLAGS and _AMOUNT.fullmatch(value)
    is_code = not is_amount and _LONG_NUMBER.search(value)
    return f"{flag}={value if is_amount else REDACTED if is_code else redacted(value, by.known)}"


def _amounts(value: Any, by: Rules) -> Any:
    """Return amounts by resource, of resources whose names are known."""
    return {
        key: each if _AMOUNT.fullmatch(str(each)) else REDACTED
        for key, each in _items(value)
        if _is_written(key, by) and not _LONG_NUMBER.search(key)
    }


def _is_written(key: str, by: Rules) -> bool:
    return redacted(key, by.known) == key


def _volumes(value: Any, by: Rules) -> Any:  # noqa: ARG001
    return [
        {
            "name": _name(each.get("name")),
            "kind": next(iter(VOLUME_KINDS & each.keys()), "other"),
        }
        for each in value or ()
        if isinstance(each, Mapping)
    ]


def _mounts(value: Any, by: Rules) -> Any:  # noqa: ARG001
    return [_name(each.get("name")) for each in value or () if isinstance(each, Mapping)]


def _data(value: Any, by: Rules) -> Any:
    """Return what a ConfigMap holds, as an object: of settings the fields that there are."""
    return {redacted(key, by.known): _content(key, str(text), by) for key, text in _items(value)}


def _content(file: str, text: str, by: Rules) -> Any:
    try:
        if file.endswith(".json"):
            found = json.loads(text)
        else:
            found = next(each.content for each in read_documents(text, source="ConfigMap"))
    except (ValueError, RecursionError, ManifestError, StopIteration):
        return REDACTED
    if file == SETTINGS and isinstance(found, Mapping):
        names = {field.alias or name for name, field in Settings.model_fields.items()}
        found = {key: each for key, each in found.items() if key in names}
    return _any(found, by)


def _any(value: Any, by: Rules) -> Any:
    """Return a value of any form, without what has a key that is not known."""
    if isinstance(value, Mapping):
        return {
            key: _any(each, by)
            for key, each in _items(value)
            if _HASH.fullmatch(key) or (_is_written(key, by) and not names_secret_last(key))
        }
    if isinstance(value, list | tuple):
        return [_any(each, by) for each in value]
    if isinstance(value, int):
        return value if len(str(abs(value))) <= MOST_DIGITS else REDACTED
    is_code = isinstance(value, str) and _LONG_NUMBER.search(value)
    return REDACTED if is_code else redacted(value, by.known) if isinstance(value, str) else value


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    yield from (
        ((str(key), each) for key, each in value.items()) if isinstance(value, Mapping) else ()
    )


SETTINGS: Final = "settings.yaml"
SPECIAL: Final[Mapping[str, Callable[[Any, Rules], Any]]] = {
    "labels": _labels,
    "annotations": _annotations,
    "env": _variables,
    "args": _arguments,
    "limits": _amounts,
    "requests": _amounts,
    "volumes": _volumes,
    "volumeMounts": _mounts,
    "data": _data,
}
"""Fields whose own keys, or places, are anybody's."""
