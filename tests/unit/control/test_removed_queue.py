"""Pods of 0.2.0 with ``engine.queue: newestFirst``, which is removed, over several ticks."""

import copy
import hashlib
import json

from fleet_builders import (
    NOW_S,
    a_deployment_body,
    a_fleet,
    a_manifest,
    a_model,
    a_state,
    managed_by,
    recorded_by,
)
from tonnage.control.input.memory import Memory
from tonnage.control.tick import tick
from tonnage.manifests.names import (
    DIGEST_ANNOTATION,
    FLAGS_ANNOTATION,
    SPEC_ANNOTATION,
    TEMPLATE_ANNOTATION,
)

LONGER = {"contextLength": 16_384, "generation": 2}
MODULE = "class NewestFirst: ..."


def container(body):
    [only] = body["spec"]["template"]["spec"]["containers"]
    return only


def digest_of(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def of_before(body):
    """Return a Deployment as 0.2.0 wrote it: in the record, the command, flags and variables."""
    body = copy.deepcopy(body)
    annotations, engine = body["metadata"]["annotations"], container(body)
    made = json.loads(annotations[SPEC_ANNOTATION])
    made["engine"]["queue"] = "newestFirst"
    annotations[SPEC_ANNOTATION] = json.dumps(made, sort_keys=True)
    annotations[DIGEST_ANNOTATION] = digest_of(annotations[SPEC_ANNOTATION])
    flags = json.loads(annotations[FLAGS_ANNOTATION]) | {"queueClassSeconds": 1.8}
    annotations[FLAGS_ANNOTATION] = json.dumps(flags)
    engine["command"] = ["python3", "-I", "-c", "...", digest_of(MODULE), *engine["command"]]
    engine["args"] += ["--scheduling-policy", "priority", "--middleware", "tonnage_queue.New"]
    engine["env"] += [{"name": "TONNAGE_QUEUE_MODULE", "value": MODULE}]
    template = json.dumps(body["spec"]["template"], sort_keys=True)
    annotations[TEMPLATE_ANNOTATION] = digest_of(template)
    return body


NEWEST_FIRST = of_before(a_deployment_body())


def applied(template, live):
    """The Deployment after our template was applied, with all pods replaced."""
    body, generation = copy.deepcopy(template), live["metadata"]["generation"] + 1
    body["metadata"] |= {
        "uid": live["metadata"]["uid"],
        "resourceVersion": str(generation),
        "generation": generation,
        "managedFields": managed_by("tonnage", "f:template") + recorded_by(),
    }
    body["spec"]["replicas"] = live["spec"]["replicas"]
    body["status"] = live["status"] | {"observedGeneration": generation}
    return body


class Loop:
    """Ticks of one object, where the template written is what runs next."""

    def __init__(self, live):
        self.live, self.memory, self.now_s = live, Memory(), NOW_S
        self.written = []

    def tick(self, **spec):
        self.now_s += 15
        state = a_state(a_manifest(**spec), live=self.live)
        outcome = tick(a_fleet(state, now_s=self.now_s), self.memory)
        self.memory = outcome.memory
        for template in (each.template for each in outcome.writes if each.template):
            self.written.append(container(template)["command"])
            self.live = applied(template, self.live)

    def condition(self, kind):
        return self.memory.objects["uid-of-llama"].reported.conditions[kind].reason


def test_run_on_until_another_change_replaces_them():
    loop = Loop(NEWEST_FIRST)
    for _ in range(3):
        loop.tick()
    assert loop.written == []

    for _ in range(4):
        loop.tick(**LONGER)

    assert loop.written == [["vllm", "serve"]]
    assert loop.condition("Drifted") == "AsWritten"


def test_are_sized_as_the_same_with_another_target():
    loop = Loop(NEWEST_FIRST)
    loop.tick()

    loop.tick(slo={"timeToFirstToken": {"p95": "3s"}}, generation=2)

    assert loop.written == [["vllm", "serve"]]


def test_in_order_have_the_digest_that_they_had():
    written = a_deployment_body(a_model())["metadata"]["annotations"]

    assert json.loads(written[SPEC_ANNOTATION])["engine"] == {"version": "0.33"}
