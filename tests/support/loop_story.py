"""A whole loop in a cluster that goes on: pods follow what is asked, the process may be killed."""

import math

from fleet_builders import a_manifest, a_sizing, at
from loop_builders import a_loop, a_world, show
from tonnage.cluster.kube import DEPLOYMENTS, MODEL_DEPLOYMENTS, PODS

OBJECT = MODEL_DEPLOYMENTS.path("serving", "llama")
PLACE = DEPLOYMENTS.path("serving", "llama")
EACH = a_sizing().goodput_requests_per_s
START_S, READY_FOR_S = 60, 3600
"""Of each pod: from created, and taken by a node, to Ready, and Ready since."""
CREATED = at(READY_FOR_S + START_S)
VOLATILE = ("resourceVersion", "lastTransitionTime", "time", "since", "uid", "managedFields")
"""What may differ between two runs that end at the same point."""
CHILDREN = ("deployments", "services", "podmonitors", "poddisruptionbudgets", "networkpolicies")


class Killed(BaseException):
    """The process is gone: none of its threads gets any further."""


class Story:
    """A cluster with one object, what happens in it, and the process that runs at the moment."""

    def __init__(self, *, load=0.9, **spec):
        self.world = a_world(a_manifest(**spec))
        self.load = load
        """In replicas' worth."""
        self.begin()

    @property
    def objects(self):
        return self.world.kube.objects

    def begin(self):
        """Start a process that remembers nothing."""
        self.world.kube.fail = lambda verb, path: None
        self.loop = a_loop(self.world)
        self.loop.start_leading()

    def kill_before(self, number):
        """Kill the process before it writes for the so-and-so-many-th time from now on."""
        first, is_dead = len(self.world.kube.writes), False

        def fail(verb, path):
            nonlocal is_dead
            is_write = verb not in {"get", "list"}
            is_dead |= is_write and len(self.world.kube.writes) - first >= number
            if is_dead:
                raise Killed

        self.world.kube.fail = fail

    def follow(self, *, ready=True):
        """Bring up what is asked for; all that is there shares the load."""
        if PLACE not in self.objects:
            return
        pods = self.world.serve(ready=ready)
        for pod in pods:
            body = self.objects[PODS.path("serving", pod)]
            body["metadata"]["creationTimestamp"] = CREATED
            for each in body["status"]["conditions"]:
                if each["type"] == "PodScheduled" or each["status"] == "False":
                    each["lastTransitionTime"] = CREATED
        rate = self.load * EACH / max(1, len(pods))
        self.world.completions_per_s = dict.fromkeys(pods if ready else [], rate)

    def tick(self, times=1, *, after_s=60):
        """Let the cluster follow, and the process decide."""
        for _ in range(times):
            self.world.now_s += after_s
            self.follow()
            show(self.loop, self.world)
            self.loop.tick()

    def change(self, **spec):
        """The user writes other fields of the spec."""
        live = self.objects[OBJECT]
        generation = live["metadata"]["generation"] + 1
        metadata = live["metadata"] | {"generation": generation}
        self.world.kube.put(OBJECT, live | {"metadata": metadata, "spec": live["spec"] | spec})

    def needed(self, *, least, most):
        """Replicas that the load takes, with no reserve of any kind."""
        return min(most, max(least, math.ceil(self.load)))

    def writes_since(self, number):
        """Without what was learned: the history of a load is written once an hour as it grows."""
        written = [each.short for each in self.world.kube.writes[number:]]
        return [each for each in written if "configmaps" not in each]

    def picture(self):
        """What the operator is answerable for: its children, and what it says of its object."""
        found = {
            path: _without_volatile(body)
            for path, body in self.objects.items()
            if path.split("/")[-2] in CHILDREN
        }
        status = self.objects[OBJECT]["status"]
        conditions = {
            each["type"]: (each["status"], each["reason"]) for each in status["conditions"]
        }
        plan = {key: status["plan"].get(key) for key in ("replicas", "maxNumSeqs", "limitedBy")}
        return found | {"conditions": conditions, "plan": plan}


def _without_volatile(value):
    if isinstance(value, dict):
        return {k: _without_volatile(v) for k, v in value.items() if k not in VOLATILE}
    return [_without_volatile(each) for each in value] if isinstance(value, list) else value
