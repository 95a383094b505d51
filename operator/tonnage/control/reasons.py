"""Every reason that a condition or a decision can have: a label of a metric takes no other value.

Words of another's make, such as those of the API server, never get into a label: each new value is
another series, and kept for as long as Prometheus keeps anything.
"""

from typing import Final

OTHER: Final = "Other"
_DECISIONS: Final = frozenset(
    {
        "ApprovalNeeded", "AwaitingTraffic", "Backlog", "Demand", "DrainTooShort", "FleetBlind",
        "Forecast",
        "GPUBudget", "GPUsUncounted", "Headroom", "InsufficientGPU", "JustStarted", "MaxNumSeqs",
        "MaxReplicas", "MetricsMissing", "MinReplicas", "NoDemand", "Pacing", "PromisesJudged",
        "QuotaExceeded", "ReplicaLost", "Reserve", "Schedule", "SpeedInDoubt", "Stabilizing",
        "StepCap", "WalkingDown",
    }
)  # fmt: skip
_CONDITIONS: Final = frozenset(
    {
        "ApprovalMalformed", "ApprovalStale", "AsPlanned", "AsPublished", "AsWritten",
        "BudgetExceeded", "BudgetUncounted", "ConflictingScaler", "ConflictingWriter",
        "ConstantOutOfRange", "CostExceeded", "FarFromEstimate", "FasterThanPossible",
        "FasterThanPublished", "InsufficientResources", "Met", "MinimumReady", "Missed",
        "MoreThanMemory", "NoNodeFits", "NoReport", "NoTraffic", "NoTrafficPath", "NotBusy",
        "NotDeployed", "NothingToApprove", "ParkedAtZero", "Paused", "PlanApproved", "PlanInvalid",
        "PlanPending", "Planned", "PodSecurityRefused", "PodsFailing", "PodsRefused",
        "PodsWouldRoll", "PriorityClassMissing", "RecommendOnly", "RollingOut", "RolloutStuck",
        "RuntimeClassMissing", "Scaling", "Scheduled", "ScrapedInPart", "SlowPod",
        "SlowerThanPublished", "SpecPending", "StatusOnly", "Stored", "TemplateEdited",
        "VolumeUnavailable", "WaitingForReplicas", "WithinBounds", "WriteRefused",
        "WrittenOtherwise",
    }
)  # fmt: skip
_STORAGE: Final = frozenset(
    {"Corrupted", "EntriesDropped", "NewerVersion", "Unreadable", "WriteFailed"}
)
_METRICS: Final = frozenset(
    {
        "BadAnswer", "MetricsIncomplete", "MetricsPartial", "NoReplicaYet",
        "PrometheusUnreachable", "QueryRefused", "QueryTimeout", "QueryTooLarge",
        "ResponseTooLarge", "Scraped", "ScrapesLeftOut",
    }
)  # fmt: skip
_REFUSALS: Final = frozenset(
    {
        "Catalog", "Checkpoint", "ClaimNotShared", "ConflictingOwner", "ContextTooLong",
        "DoesNotFit",
        "EngineVersionUnknown", "FlagsUnknown", "InternalError", "InvalidKvCache",
        "InvalidParallelism", "InvalidSpec", "InvalidSpeculation", "MissingFigure", "ModelConfig",
        "ModelConfigMissing", "NameConflict", "NamespaceUnreadable", "NotServable",
        "RunningSpecUnknown", "SLOInfeasible", "ScaleOnly", "Sizing", "TargetNotAllowed",
        "UnknownArchitecture", "UnknownGpu", "UnknownModel", "UnsupportedEngine",
    }
)  # fmt: skip
REASONS: Final = _DECISIONS | _CONDITIONS | _STORAGE | _METRICS | _REFUSALS


def bounded(reason: str) -> str:
    """Return a reason that may be a label's value.

    >>> bounded("MaxReplicas"), bounded("a message of somebody else")
    ('MaxReplicas', 'Other')
    """
    return reason if reason in REASONS else OTHER
