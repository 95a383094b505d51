"""``engine.queue: auto`` over several ticks, where the template written is what runs next."""

import copy

import pytest

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
from tonnage.manifests.names import DIGEST_ANNOTATION
from tonnage.sizing.expected import queue_of

AUTO, FCFS = ({"version": "0.33", "queue": queue} for queue in ("auto", "fcfs"))
IN_ORDER = a_deployment_body(a_model(engine=FCFS))
LONGER = {"contextLength": 16_384, "generation": 2}
OTHER = "mirror.example.test/vllm/vllm-openai:v0.33.0"


def container(body):
    [only] = body["spec"]["template"]["spec"]["containers"]
    return only


def queue_in(body):
    return "newestFirst" if "--middleware" in container(body)["args"] else "fcfs"


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


def by_others(body, generation, record="kubectl-edit"):
    """The same as somebody else wrote it; ``record``: who wrote our annotations."""
    body = copy.deepcopy(body)
    body["metadata"] |= {
        "generation": generation,
        "managedFields": managed_by("kubectl-edit", "f:template") + recorded_by(record),
    }
    body["status"] |= {"observedGeneration": generation}
    return body


def with_image(body, image=OTHER):
    body = copy.deepcopy(body)
    container(body)["image"] = image
    return body


class Loop:
    """Ticks of one object; ``webhook``: what the API server makes of each template of ours."""

    def __init__(self, live, webhook=None):
        self.webhook = webhook or (lambda body: body)
        self.live, self.memory, self.now_s = self.webhook(live), Memory(), NOW_S
        self.written = []

    def tick(self, **spec):
        spec = {"engine": AUTO} | spec
        approve = spec.pop("approve", None)
        manifest = a_manifest(**spec)
        if approve:
            manifest["metadata"]["annotations"] = {"tonnage.dev/approve": approve}
        self.now_s += 15
        state = a_state(manifest, live=self.live)
        outcome = tick(a_fleet(state, now_s=self.now_s), self.memory)
        self.memory, [found] = outcome.memory, outcome.found
        for template in (each.template for each in outcome.writes if each.template):
            self.written.append(queue_in(template))
            self.live = self.webhook(applied(template, self.live))
        return found

    def condition(self, kind):
        return self.memory.objects["uid-of-llama"].reported.conditions[kind].reason


def test_a_change_that_replaces_pods_brings_the_other_queue_once():
    loop = Loop(IN_ORDER)
    for _ in range(3):
        loop.tick()
    assert loop.written == []

    for _ in range(4):
        loop.tick(**LONGER)

    assert loop.written == ["newestFirst"]
    assert loop.condition("Drifted") == "AsWritten"


def test_an_edit_that_is_taken_back_leaves_the_queue_as_it_was():
    loop = Loop(IN_ORDER)
    loop.tick()
    loop.live = by_others(with_image(loop.live), generation=9)

    for _ in range(3):
        loop.tick()

    assert loop.written == ["fcfs"]


@pytest.mark.parametrize("live", [IN_ORDER, a_deployment_body()], ids=["fcfs", "newestFirst"])
def test_what_a_webhook_changes_at_each_write_is_no_reason_to_replace_pods(live):
    """A mirror of images: reapplied after a restart, and with a target that hardly moves."""
    loop, before = Loop(live, with_image), queue_in(live)
    for _ in range(3):
        loop.tick()
    template = copy.deepcopy(loop.live["spec"]["template"])
    slo = {"timeToFirstToken": {"p95": "2.1s"}, "timePerOutputToken": {"p95": "50ms"}}

    for _ in range(3):
        loop.tick(slo=slo, generation=2)

    assert set(loop.written) == {before}
    assert loop.live["spec"]["template"] == template


def test_a_template_of_before_that_comes_back_is_written_over_ever_more_rarely():
    """As ``kubectl rollout undo`` and a second writer do it: counted as with a queue by name."""

    def number_of_writes(engine):
        loop, is_seen = Loop(IN_ORDER), False
        loop.tick(engine=engine)
        for _ in range(16):
            loop.tick(engine=engine, **LONGER)
            is_ours = digest(loop.live) != digest(IN_ORDER)
            if is_ours and is_seen:
                loop.live = by_others(IN_ORDER, loop.live["metadata"]["generation"] + 1)
            is_seen = is_ours and not is_seen
        return len(loop.written)

    assert number_of_writes(AUTO) == number_of_writes(FCFS) < 6


def digest(body):
    return body["metadata"]["annotations"][DIGEST_ANNOTATION]


class TestApprove:
    SCALING = {"mode": "Approve", "minReplicas": 1, "maxReplicas": 8}  # noqa: RUF012

    def test_a_plan_keeps_its_name_when_it_is_carried_out_with_the_other_queue(self):
        loop = Loop(IN_ORDER)
        asked = LONGER | {"scaling": self.SCALING}
        loop.tick(scaling=self.SCALING)
        names = {each.digest for _ in range(3) for each in loop.tick(**asked).proposals}
        assert loop.written == []
        [name] = names

        for _ in range(4):
            loop.tick(**asked, approve=name)

        assert loop.written == ["newestFirst"]
        assert loop.condition("Approved") == "PlanApproved"

    def test_who_agreed_to_pods_in_order_did_not_agree_to_another_queue(self):
        [proposal] = (
            Loop(by_others(with_image(IN_ORDER), 9, "tonnage"))
            .tick(engine=FCFS, scaling=self.SCALING)
            .proposals
        )
        loop = Loop(by_others(with_image(IN_ORDER), 9, "tonnage"))

        for _ in range(3):
            loop.tick(scaling=self.SCALING, approve=proposal.digest)

        assert loop.written == ["fcfs"]


def test_decode_serves_in_order_since_prefill_gives_up_caches_that_wait():
    hardware = {"gpu": "H200", "parallelism": {"tensor": 2}}
    decode = a_model(engine={"version": "0.33", "role": "decode"}, hardware=hardware).spec

    assert queue_of(decode).name == "fcfs"
    assert "30 s" in queue_of(decode).why
