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
        "ApprovalMalformed", "ApprovalStale", "AsPlanned", "AsPublished", "BudgetExceeded",
        "BudgetUncounted", "ConflictingScaler", "ConflictingWriter", "ConstantOutOfRange",
        "CostExceeded", "FarFromEstimate", "FasterThanPossible", "FasterThanPublished", "Met",
        "MinimumReady", "Missed", "MoreThanMemory", "NoReport", "NoTraffic", "NotBusy",
        "NotDeployed", "NothingToApprove", "ParkedAtZero", "Paused", "PlanApproved", "PlanInvalid",
        "PlanPending", "Planned", "PodsFailing", "PodsWouldRoll", "RecommendOnly", "RollingOut",
        "RolloutStuck", "Scaling", "Scheduled", "ScrapedInPart", "SlowPod", "SlowerThanPublished",
        "SpecPending", "StatusOnly", "Stored", "WaitingForReplicas", "WithinBounds",
        "WriteRefused",
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
        "Catalog", "Checkpoint", "ConflictingOwner", "ContextTooLong", "DoesNotFit",
        "EngineVersionUnknown", "FlagsUnknown", "InternalError", "InvalidKvCache",
        "InvalidParallelism", "InvalidSpec", "InvalidSpeculation", "MissingFigure", "ModelConfig",
        "ModelConfigMissing", "NameConflict", "NotServable", "RunningSpecUnknown", "SLOInfeasible",
        "Sizing", "TargetNotAllowed", "UnknownArchitecture", "UnknownGpu", "UnknownModel",
        "UnsupportedEngine",
    }
)  # fmt: skip
REASONS: Final = _DECISIONS | _CONDITIONS | _STORAGE | _METRICS | _REFUSALS


def bounded(reason: str) -> str:
    """Return a reason that may be a label's value.

    >>> bounded("MaxReplicas"), bounded("a message of somebody else")
    ('MaxReplicas', 'Other')
    """
    return reason if reason in REASONS else OTHER
