"""The status of a pod from what its containers do. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Json = Mapping[str, Any]

OWN_CONDITIONS: Final = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Not running, and why."""

    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Running since."""

    started_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminated:
    """Ran, and ended."""

    exit_code: int
    started_at: str
    finished_at: str
    container_id: str
    message: str = ""

    @property
    def reason(self) -> str:
        return "Completed" if self.exit_code == 0 else "Error"


State = Waiting | Running | Terminated


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerStatus:
    """What is known of one container."""

    name: str
    image: str
    state: State
    last: Terminated | None = None
    ready: bool = False
    started: bool = False
    restart_count: int = 0
    container_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSituation:
    """Everything that a pod's status depends on."""

    pod: Json
    containers: Sequence[ContainerStatus]
    pod_ip: str
    host_ip: str
    start_time: str
    now: str


def pod_status(situation: PodSituation) -> dict[str, Any]:
    """Return the status to patch in; conditions of others are left to the merge by type."""
    phase = pod_phase(situation.containers, situation.pod["spec"].get("restartPolicy", "Always"))
    status = {
        "phase": phase,
        "observedGeneration": situation.pod["metadata"].get("generation", 1),
        "startTime": situation.start_time,
        "hostIP": situation.host_ip,
        "hostIPs": [{"ip": situation.host_ip}],
        "conditions": _conditions(situation, phase),
        "containerStatuses": [_container(each) for each in situation.containers],
    }
    if situation.pod_ip:
        status |= {"podIP": situation.pod_ip, "podIPs": [{"ip": situation.pod_ip}]}
    return status


def pod_phase(containers: Iterable[ContainerStatus], restart_policy: str) -> str:
    """Return the phase as a kubelet decides it."""
    states = [_ended_or_state(each) for each in containers]
    if any(isinstance(state, Waiting) for state in states):
        return "Pending"
    ended = [state for state in states if isinstance(state, Terminated)]
    if len(ended) < len(states) or restart_policy == "Always":
        return "Running"
    if all(state.exit_code == 0 for state in ended):
        return "Succeeded"
    return "Failed" if restart_policy == "Never" else "Running"


def _ended_or_state(container: ContainerStatus) -> State:
    """A container that waits for its next start has ended, for the phase."""
    if isinstance(container.state, Waiting) and container.last:
        return container.last
    return container.state


def _conditions(situation: PodSituation, phase: str) -> list[dict[str, Any]]:
    unready = [each.name for each in situation.containers if not each.ready]
    problem: dict[str, str] = {}
    if phase == "Succeeded":
        problem = {"reason": "PodCompleted"}
    elif unready:
        message = f"containers with unready status: [{' '.join(unready)}]"
        problem = {"reason": "ContainersNotReady", "message": message}
    holds = dict.fromkeys(OWN_CONDITIONS, not problem)
    holds |= {"PodReadyToStartContainers": bool(situation.pod_ip), "Initialized": True}
    before = {each["type"]: each for each in _conditions_before(situation.pod)}
    return [
        _condition(kind, holds=holds[kind], problem=problem, before=before, now=situation.now)
        for kind in OWN_CONDITIONS
    ]


def _conditions_before(pod: Json) -> list[Json]:
    return (pod.get("status") or {}).get("conditions") or []


def _condition(
    kind: str, *, holds: bool, problem: Mapping[str, str], before: Mapping[str, Json], now: str
) -> dict[str, Any]:
    status = "True" if holds else "False"
    old = before.get(kind)
    changed_at = old["lastTransitionTime"] if old and old["status"] == status else now
    reason = {"reason": None, "message": None} | ({} if holds else dict(problem))
    return {
        "type": kind,
        "status": status,
        "lastProbeTime": None,
        "lastTransitionTime": changed_at,
        **reason,
    }


def _container(container: ContainerStatus) -> dict[str, Any]:
    return {
        "name": container.name,
        "image": container.image,
        "imageID": container.image,
        "containerID": container.container_id,
        "ready": container.ready,
        "started": container.started,
        "restartCount": container.restart_count,
        "state": _state(container.state),
        "lastState": _state(container.last) if container.last else {},
    }


def _state(state: State) -> dict[str, Any]:
    match state:
        case Waiting():
            message = {"message": state.message} if state.message else {}
            return {"waiting": {"reason": state.reason, **message}}
        case Running():
            return {"running": {"startedAt": state.started_at}}
        case Terminated():
            said = {"message": state.message} if state.message else {}
            return {
                "terminated": {
                    **said,
                    "exitCode": state.exit_code,
                    "reason": state.reason,
                    "startedAt": state.started_at,
                    "finishedAt": state.finished_at,
                    "containerID": state.container_id,
                }
            }
