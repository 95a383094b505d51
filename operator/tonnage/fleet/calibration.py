"""The calibration ConfigMaps: read when this process starts to lead, written rarely.

What namespaces share is in one, what belongs to one object each in shards by hash of its UID.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tonnage.api.status import Reason
from tonnage.cluster.kube import KubeApi
from tonnage.estimate.calibration import Calibrations
from tonnage.estimate.keeping import (
    NUM_SHARDS,
    fitting_objects,
    fitting_shared,
    has_moved,
    shard_of,
)
from tonnage.estimate.posterior import ObjectPosterior
from tonnage.estimate.stored import dump_objects, dump_shared, load_objects, load_shared
from tonnage.fleet.stored_map import GRAVEST_FIRST, Form, StoredMap

NAME: Final = "tonnage-calibration"
INTERVAL_S: Final = 60
MOST_TOLD: Final = 3
"""Problems that are told in words; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreResult:
    """What is known after reading or writing, and what was wrong with that."""

    calibrations: Calibrations
    problem: Reason | None = None
    """Why what was learned is not all stored, or was not all read."""


class CalibrationConfigMap:
    """What was learned, in the operator's namespace. No failure of it ends a tick.

    ``kube``: fenced by the Lease.
    """

    def __init__(self, kube: KubeApi, *, namespace: str) -> None:
        shared = StoredMap(kube, _SHARED, namespace=namespace, name=NAME, aside=f"{NAME}-corrupt-0")
        shards = (
            StoredMap(
                kube,
                _SHARD,
                namespace=namespace,
                name=f"{NAME}-objects-{number}",
                aside=f"{NAME}-corrupt-1",
            )
            for number in range(NUM_SHARDS)
        )
        self._maps = (shared, *shards)
        self._num_evicted = 0

    def read(self) -> StoreResult:
        """Return what was learned, as far as it can be read.

        What the API server does not hand out is read by ``keep`` later, and not written before.
        """
        for each in self._maps:
            each.forget()
        known = Calibrations()
        for each in self._maps:
            known = _merge(each.read(), known)
            if each.is_unreachable:
                break
        return StoreResult(calibrations=known, problem=self._problem())

    def keep(
        self,
        known: Calibrations,
        now_s: float,
        *,
        live: Mapping[str, str],
        is_last: bool = False,
    ) -> StoreResult:
        """Write each ConfigMap of which a constant moved by more than 2 %, once a minute at most.

        Returns what is known then: with what could be read only now, and without what there is no
        room for. ``live``: namespaces of the ModelDeployments that are there, by UID. ``is_last``:
        there is no later time for it, so that it is now, however little moved.
        """
        parts, moved = [], _differ if is_last else has_moved
        is_reachable = True
        for stored, part in zip(self._maps, _parts(known), strict=True):
            is_time = is_last or now_s - stored.tried_at_s >= INTERVAL_S
            is_due = is_reachable and is_time
            parts.append(self._store(stored, part, now_s, live, moved) if is_due else part)
            is_reachable = is_reachable and not (is_due and stored.is_unreachable)
        return StoreResult(calibrations=_whole(parts), problem=self._problem(now_s))

    def take_evicted(self) -> int:
        """Return how many entries there was no room for since this was last asked."""
        evicted, self._num_evicted = self._num_evicted, 0
        return evicted

    def _store(
        self,
        stored: StoredMap,
        part: Calibrations,
        now_s: float,
        live: Mapping[str, str],
        moved: Callable[[Calibrations, Calibrations], bool],
    ) -> Calibrations:
        if not stored.is_read:
            part = _merge(stored.read(now_s), part)
        if not stored.is_read:
            return part
        if not moved(stored.held, part):
            stored.rest()
            return part
        fitting = stored.form.fit(part, live)
        if fitting is not part and not moved(stored.held, fitting):
            stored.rest()
            return fitting
        if not stored.may_overwrite:
            stored.replace_unwritten(fitting, now_s)
        elif not stored.write(fitting, now_s):
            return part
        self._num_evicted += _num_entries(part) - _num_entries(fitting)
        return fitting

    def _problem(self, now_s: float | None = None) -> Reason | None:
        problems = [problem for each in self._maps for problem in each.problems(now_s)]
        found = sorted(problems, key=lambda each: (GRAVEST_FIRST.index(each.code), each.message))
        if not found:
            return None
        told = [problem.message for problem in found[:MOST_TOLD]]
        more = [f"and {len(found) - MOST_TOLD} more"] if len(found) > MOST_TOLD else []
        return Reason(found[0].code, "; ".join(told + more))


_SHARED: Final = Form(
    load=load_shared,
    dump=dump_shared,
    fit=lambda part, live: fitting_shared(part, live=set(live.values())),
)
_SHARD: Final = Form(
    load=load_objects,
    dump=lambda part: dump_objects(part.objects),
    fit=lambda part, live: replace(part, objects=fitting_objects(part.objects, live=live.keys())),
)


def _parts(known: Calibrations) -> Sequence[Calibrations]:
    """Return what belongs into each ConfigMap, the shared one first."""
    shards: list[dict[str, ObjectPosterior]] = [{} for _ in range(NUM_SHARDS)]
    for uid, posterior in known.objects.items():
        shards[shard_of(uid)][uid] = posterior
    return [replace(known, objects={}), *(Calibrations(objects=shard) for shard in shards)]


def _whole(parts: Sequence[Calibrations]) -> Calibrations:
    shared, *shards = parts
    objects = {uid: each for shard in shards for uid, each in shard.objects.items()}
    return replace(shared, objects=objects)


def _differ(held: Calibrations, known: Calibrations) -> bool:
    return held != known


def _merge(stored: Calibrations, known: Calibrations) -> Calibrations:
    """Return both; what this process learned itself stands above what it read."""
    return Calibrations(
        speed={**stored.speed, **known.speed},
        memory={**stored.memory, **known.memory},
        objects={**stored.objects, **known.objects},
        inherited={**stored.inherited, **known.inherited},
    )


def _num_entries(part: Calibrations) -> int:
    return len(part.speed) + len(part.memory) + len(part.objects)
