"""The lists of what a bug report writes: fields, labels, annotations, Events, flags and volumes."""

from typing import Final

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
from tonnage.redaction import NAMING

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
