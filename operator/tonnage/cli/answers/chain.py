"""The chain behind a live object: signal, correction, sizing, caps, decision."""

from typing import Any, Final

from tonnage.api.crd import UNSEEN
from tonnage.cli.read.nested import Object, block, objects
from tonnage.control.report.condition_types import CONDITION_TYPES

SIZING_CODES: Final = frozenset({"Capacity", "Slots"})
NEED_CODES: Final = frozenset({"CachesUntaken", "Demand", "Backlog", "NoDemand"})
LEARNED_CODES: Final = frozenset(
    {"SpeedInDoubt", "KVCacheCalibrated", "PromisesJudged", "MaxNumSeqs"}
)


def chain(resource: Object) -> dict[str, Any]:
    """Return the links from what is measured to what is decided, as plain data."""
    metadata, spec, status = (block(resource, key) for key in ("metadata", "spec", "status"))
    plan, estimate = block(status, "plan"), block(status, "estimate")
    is_unseen = status.get("observedGeneration") == UNSEEN["observedGeneration"]
    return {
        "metadata": {key: metadata.get(key) for key in ("name", "namespace", "generation")},
        "model": block(spec, "model").get("id"),
        "gpu": block(spec, "hardware").get("gpu"),
        "mode": block(spec, "scaling").get("mode", "Auto"),
        "observedGeneration": None if is_unseen else status.get("observedGeneration"),
        "signal": {
            "measured": dict(block(status, "measured")),
            "conditions": _conditions(status, "signal"),
        },
        "correction": {
            "calibration": dict(block(status, "calibration")),
            "coldStart": dict(block(status, "measured", "coldStartSeconds")),
            "measuredInputs": _inputs(estimate, is_measured=True),
            "reasons": _reasons(plan, LEARNED_CODES),
            "conditions": _conditions(status, "correction"),
        },
        "sizing": {
            "plan": {key: value for key, value in plan.items() if key != "reasons"},
            "estimate": {key: value for key, value in estimate.items() if key != "inputs"},
            "inputs": _inputs(estimate, is_measured=False),
            "reasons": _reasons(plan, SIZING_CODES | NEED_CODES),
            "conditions": _conditions(status, "sizing"),
        },
        "caps": {
            "minReplicas": block(spec, "scaling").get("minReplicas", 1),
            "maxReplicas": block(spec, "scaling").get("maxReplicas"),
            "reasons": _reasons(plan, SIZING_CODES | NEED_CODES | LEARNED_CODES, is_inverse=True),
            "conditions": _conditions(status, "caps"),
        },
        "decision": {
            "replicas": dict(block(status, "replicas")),
            "decisions": [dict(each) for each in objects(status, "decisions")],
            "conditions": _conditions(status, "decision"),
        },
    }


def _conditions(status: Object, link: str) -> list[dict[str, Any]]:
    """Return the conditions of one link, in the order in which a status has them."""
    found = {each.get("type"): dict(each) for each in objects(status, "conditions")}
    names = (each.name for each in CONDITION_TYPES.values() if each.link == link)
    return [found[name] for name in names if name in found]


def _reasons(
    plan: Object, codes: frozenset[str], *, is_inverse: bool = False
) -> list[dict[str, Any]]:
    return [
        dict(each) for each in objects(plan, "reasons") if (each.get("code") in codes) != is_inverse
    ]


def _inputs(estimate: Object, *, is_measured: bool) -> list[dict[str, Any]]:
    return [
        dict(each)
        for each in objects(estimate, "inputs")
        if (each.get("origin") == "measured") == is_measured
    ]
