"""Other writers of a Deployment, over many ticks: what is reapplied when, and what is said."""

from dataclasses import dataclass, field

import pytest

from fleet_builders import (
    NOW_S,
    a_deployment_body,
    a_fleet,
    a_manifest,
    a_model,
    a_sizing,
    a_state,
    managed_by,
    recorded_by,
)
from tonnage.control.input.memory import Memory
from tonnage.control.input.writers import (
    REPLICAS_LONGEST_S,
    TEMPLATE_LONGEST_S,
    Cause,
    Fate,
    Part,
    Result,
    WriteKind,
)
from tonnage.control.tick import tick, with_results
from tonnage.manifests.names import DIGEST_ANNOTATION, RECORD, TEMPLATE_ANNOTATION

ARGO = managed_by("argocd-controller", "f:replicas")
KUBECTL = managed_by("kubectl", "f:replicas", subresource="scale")
OURS = managed_by("tonnage-scale", "f:replicas", subresource="scale")
TARGET = {"engine": None, "scaleTarget": {"name": "llama"}}
SIZING = a_sizing()
OUR_IMAGE, THEIR_IMAGE = "vllm/vllm-openai:v0.33.0", "theirs/vllm:v0.33.0"
UID = "uid-of-llama"
ARGO_EDIT = managed_by("argocd-controller", "f:template")
OF_BEFORE = {"contextLength": 16_384}
ALL = {}
STALE = {WriteKind.SCALE: Result()}
NO_ANSWER = {WriteKind.SCALE: Result(fate=Fate.UNKNOWN)}
REFUSED = {WriteKind.TEMPLATE: Result(cause=Cause.REFUSED, detail="denied by a webhook")}


@dataclass(kw_only=True)
class Story:
    """One Deployment that Tonnage and others write to, in turn."""

    load: float = 1.5
    """Of one replica: two are needed."""
    spec: dict = field(default_factory=dict)
    generation: int = 1
    replicas: int = 2
    writers: list = field(default_factory=lambda: OURS)
    ours: list = field(default_factory=lambda: OURS)
    """What the API server keeps of our own writes of replicas."""
    image: str = OUR_IMAGE
    template_writers: list = field(default_factory=list)
    revision: int = 3
    now_s: float = NOW_S
    memory: Memory = field(default_factory=Memory)
    events: list = field(default_factory=list)

    def set(self, replicas, writers=ARGO):
        """Somebody else sets replicas."""
        self.replicas, self.writers, self.revision = replicas, writers, self.revision + 1

    def edit(self, writers=None):
        """Somebody else changes the image."""
        self.image, self.revision = THEIR_IMAGE, self.revision + 1
        self.template_writers = ARGO_EDIT if writers is None else writers

    def body(self):
        is_target = "scaleTarget" in self.spec
        model = a_model() if is_target else a_model(**self.spec)
        target = {"ownerReferences": []} if is_target else {}
        fields = managed_by("tonnage", "f:template") + self.writers + self.template_writers
        body = a_deployment_body(
            model, sizing=SIZING, replicas=self.replicas,
            generation=self.revision, managedFields=fields, **target,
        )  # fmt: skip
        body["spec"]["template"]["spec"]["containers"][0]["image"] = self.image
        return body

    def tick(self, after_s=60, *, carried=ALL, lands=None):
        """Let time pass and carry out what is written; return (replicas, template) asked for.

        ``carried``: what the API server said of it. ``lands``: whether replicas were written all
        the same.
        """
        self.now_s += after_s
        manifest = a_manifest(generation=self.generation, **self.spec)
        live = self.body()
        state = a_state(manifest, replicas=self.replicas, live=live, load=self.load)
        outcome = tick(a_fleet(state, now_s=self.now_s), self.memory)
        self.memory = with_results(outcome, {UID: carried}, before=self.memory, now_s=self.now_s)
        [writes] = outcome.writes
        self.events += [each.reason for each in writes.event_records if each.is_warning]
        if writes.scale and (WriteKind.SCALE not in carried if lands is None else lands):
            self.set(writes.scale.replicas, self.ours)
        if writes.template and WriteKind.TEMPLATE not in carried:
            self.image, self.template_writers = OUR_IMAGE, []
            self.revision += 1
        return writes.scale and writes.scale.replicas, writes.template is not None

    def condition(self, kind="ScalingActive"):
        return self.memory.objects[UID].reported.conditions.get(kind)

    def said(self, kind="ScalingActive"):
        found = self.condition(kind)
        return found and (found.status, found.reason)


class Webhooked(Story):
    """A webhook stamps each write of ours, and sets an image of its own."""

    def __init__(self, rewritten="mirror.test/vllm"):
        super().__init__()
        self.num_written, self.rewritten, self.has_probe = 0, rewritten, True

    def body(self):
        body = super().body()
        template = body["spec"]["template"]
        stamp = {"example.test/stamp": str(self.num_written)}
        template["metadata"]["annotations"] = template["metadata"].get("annotations", {}) | stamp
        container = template["spec"]["containers"][0]
        container["image"] = self.rewritten.format(self.num_written)
        if not self.has_probe:
            del container["readinessProbe"]
        return body

    def written(self, *, num_ticks, every_s=15):
        """In which ticks the template is written."""
        found = []
        for number in range(num_ticks):
            if self.tick(every_s)[1]:
                self.num_written, self.has_probe = self.num_written + 1, True
                found.append(number)
        return found


class Reverted(Story):
    """Another keeps our whole Deployment of an earlier spec, with what we recorded on it."""

    def __init__(self):
        super().__init__(spec=OF_BEFORE)
        self.stands = OF_BEFORE

    def body(self):
        asked, self.spec = self.spec, self.stands
        body, self.spec = super().body(), asked
        if self.template_writers:
            body["metadata"]["managedFields"][-1:] = recorded_by("argocd-controller")
        return body

    def tick(self, *arguments, **changes):
        asked = super().tick(*arguments, **changes)
        if asked[1]:
            self.stands = self.spec
        return asked

    def revert(self):
        self.stands, self.template_writers = OF_BEFORE, ARGO_EDIT
        self.revision += 1


class Unrecorded(Webhooked):
    """The webhook takes away what tells for which spec our write was."""

    def body(self):
        body = super().body()
        del body["metadata"]["annotations"][DIGEST_ANNOTATION]
        return body


def a_story(**changes):
    """At rest, after a first look."""
    story = Story(**changes)
    assert story.tick() == (None, False)
    return story


SCHEDULE = [0, 1, 3, 7, 15, 31]
"""Minutes at which ours is reapplied over who undoes that at once."""


def minutes_written(story, undo, *, minutes, is_template=False, every_s=60):
    """The minutes at which ours is written, while another undoes it before each tick."""
    found = []
    for number in range(minutes * 60 // every_s):
        undo(story)
        if story.tick(every_s)[is_template]:
            found.append(number * every_s // 60)
    return found


def fought():
    """An autoscaler has undone four corrections of replicas, for eight minutes."""
    story = a_story()
    minutes_written(story, lambda story: story.set(1), minutes=9)
    return story


def fought_for_the_template():
    """Argo CD has undone four corrections of the template, for eight minutes."""
    story = a_story()
    minutes_written(story, Story.edit, minutes=9, is_template=True)
    return story


class TestTheBackOff:
    def edited(self, part, at_s, generation=1):
        return part.looked_at("x changed y", generation=generation, now_s=at_s)

    def reapplied(self, *at_s):
        part = Part(longest_s=REPLICAS_LONGEST_S)
        for each in at_s:
            part = self.edited(part, each).count_reapply(each)
        return part

    @pytest.mark.parametrize(
        ("times", "wait_s"), [(1, 60), (2, 120), (3, 240), (5, 960), (6, 1800), (2000, 1800)]
    )
    def test_doubles_up_to_the_longest(self, times, wait_s):
        part = self.reapplied(*[NOW_S] * times)

        assert self.edited(part, NOW_S + wait_s - 1).in_backoff
        assert not self.edited(part, NOW_S + wait_s).in_backoff

    def test_counts_no_write_over_what_nobody_edited(self):
        assert Part(longest_s=60).count_reapply(NOW_S).times == 0

    def test_counts_an_edit_once_however_often_its_correction_fails(self):
        assert self.edited(self.edited(self.reapplied(NOW_S), NOW_S), NOW_S).times == 1

    @pytest.mark.parametrize(("quiet_s", "times"), [(1799, 1), (1800, 0)])
    def test_is_forgotten_after_the_longest_wait_without_an_edit(self, quiet_s, times):
        assert self.edited(self.reapplied(NOW_S), NOW_S + quiet_s).times == times

    def test_is_not_forgotten_while_an_edit_is_left(self):
        part = self.reapplied(*[NOW_S] * 6)
        for at_s in (NOW_S + 600, NOW_S + 1200, NOW_S + 1800):
            part = self.edited(part, at_s)

        assert part.times == 6

    def test_is_forgotten_for_another_spec(self):
        assert self.edited(self.reapplied(NOW_S), NOW_S, generation=2).times == 0

    def test_is_not_put_off_by_a_clock_that_is_set_back(self):
        back = self.edited(self.reapplied(NOW_S), NOW_S - 7200)

        assert back.in_backoff
        assert not self.edited(back, NOW_S - 7200 + 60).in_backoff

    def test_says_who_and_how_often_and_how_long_it_is_left(self):
        assert self.edited(self.reapplied(NOW_S), NOW_S).conflict == (
            "x changed y after 1 correction: Tonnage corrects it 60.00 s after the last time, or "
            "once the spec changes"
        )
        assert self.edited(Part(longest_s=60), NOW_S).conflict is None


class TestReplicas:
    def test_that_a_person_set_once_are_corrected_without_a_word(self):
        story = a_story()
        story.set(1, KUBECTL)

        assert story.tick() == (2, False)
        assert story.said() == ("True", "Scaling")
        assert story.events == []

    def test_are_written_ever_later_over_one_who_undoes_that(self):
        story = a_story()

        written = minutes_written(story, lambda story: story.set(1), minutes=63)

        assert written == [*SCHEDULE, 61]
        assert story.said() == ("False", "ConflictingWriter")
        assert story.condition().message.startswith(
            "argocd-controller changed the replicas from 2 to 1 after 7 corrections"
        )
        assert set(story.events) == {"ConflictingWriter"}

    def test_are_written_again_for_a_new_spec(self):
        story = fought()
        story.generation = 2

        assert story.tick(15) == (2, False)
        assert story.said() == ("True", "Scaling")

    def test_are_corrected_at_once_again_after_thirty_quiet_minutes(self):
        story = fought()
        story.tick(480)
        story.tick(REPLICAS_LONGEST_S)
        story.set(1)

        assert story.tick(15) == (2, False)
        assert story.said() == ("True", "Scaling")

    def test_are_not_wanted_and_not_decided_while_they_are_left(self):
        story = fought()
        before = story.memory.objects[UID].reported.decisions
        story.load = 3.5
        story.tick()

        assert story.memory.objects[UID].reported.decisions == before
        assert story.said("Reconciling") is None

    def test_that_another_set_and_that_are_needed_too_are_a_conflict_no_more(self):
        story = fought()
        story.load = 0.5
        for _ in range(100):
            story.tick(15)
            if story.said() == ("True", "Scaling"):
                break

        assert (story.replicas, story.said()) == (1, ("True", "Scaling"))

    def test_of_a_template_that_is_to_change_do_not_hold_it_back(self):
        story = fought()
        story.edit()

        assert story.tick() == (None, True)

    def test_that_never_were_ours_are_taken_over(self):
        story = Story(replicas=1, writers=managed_by("kubectl-create", "f:replicas"))

        assert story.tick() == (2, False)
        assert story.memory.objects[UID].writers.replicas.times == 0


def with_injected(body):
    """As Istio and Kyverno inject what belongs to nobody of ours."""
    pod = body["spec"]["template"]["spec"]
    pod["containers"].append({"name": "istio-proxy", "image": "istio/proxyv2:1"})
    pod["volumes"] = [*pod.get("volumes", []), {"name": "istio-token", "emptyDir": {}}]
    ours = {"f:containers": {'k:{"name":"vllm"}': {}}}
    fields = {"f:spec": {"f:template": {"f:spec": ours}}}
    body["metadata"]["managedFields"] = [
        {"manager": "tonnage", "operation": "Apply", "fieldsV1": fields},
        *recorded_by(),
    ]


def with_a_restart(body):
    metadata = body["spec"]["template"]["metadata"]
    restarted = {"kubectl.kubernetes.io/restartedAt": "2026-11-23T00:00:00Z"}
    metadata["annotations"] = metadata.get("annotations", {}) | restarted


class Changed(Story):
    """Somebody changed the body once, and it stays so."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def body(self):
        body = super().body()
        self.change(body)
        return body


def once_edited():
    story = a_story()
    story.edit(managed_by("kubectl-edit", "f:template"))
    return story


def undone_once():
    """``kubectl rollout undo``: template and annotations of the spec before."""
    story = Reverted()
    story.tick(15)
    story.spec, story.generation = {}, 2
    story.tick(15)
    story.tick(15)
    story.revert()
    return story


def leave(story):
    pass


@pytest.mark.parametrize(
    ("make", "act", "minutes", "scaling", "drifted"),
    [
        (lambda: Changed(with_injected), leave, [], "Scaling", "TemplateEdited"),
        (lambda: Changed(with_a_restart), leave, [], "Scaling", "AsWritten"),
        (once_edited, leave, [0], "Scaling", "AsWritten"),
        (undone_once, leave, [0], "Scaling", "AsWritten"),
        (a_story, Story.edit, SCHEDULE, "ConflictingWriter", "TemplateEdited"),
    ],
    ids=["Istio, Kyverno", "rollout restart", "kubectl edit", "rollout undo", "Argo CD self-heal"],
)
def test_what_becomes_of_each_other_writer(make, act, minutes, scaling, drifted):
    story = make()

    assert minutes_written(story, act, minutes=32, is_template=True) == minutes
    assert story.said()[1] == scaling
    assert story.said("Drifted")[1] == drifted


class TestTheTemplate:
    def test_is_left_to_one_who_undoes_corrections(self):
        story = fought_for_the_template()

        assert story.said() == ("False", "ConflictingWriter")
        assert story.condition().message.startswith(
            "argocd-controller changed spec.containers[vllm].image after 4 corrections"
        )
        assert story.events == ["TemplateEdited", "ConflictingWriter"]

    def test_is_left_to_one_whom_the_api_server_does_not_name(self):
        story = a_story()

        written = minutes_written(story, lambda story: story.edit([]), minutes=8, is_template=True)

        assert written == [0, 1, 3, 7]
        assert story.said() == ("False", "ConflictingWriter")
        assert story.condition().message.startswith("somebody changed spec.containers[vllm].image")

    def test_that_was_edited_while_nobody_looked_is_reapplied(self):
        story = Story()
        story.edit()

        assert story.tick() == (None, True)
        assert story.tick() == (None, False)
        assert story.said("Drifted") == ("False", "AsWritten")

    def test_that_a_webhook_writes_anew_each_time_is_written_once(self):
        # Applying ours changes nothing that stands.
        story = a_story()
        story.edit(writers=[])
        applied = []
        for _ in range(4):
            applied.append(story.tick()[1])
            story.image, story.revision = THEIR_IMAGE, 4

        assert applied == [True, False, False, False]
        assert story.said("Drifted") == ("True", "TemplateEdited")

    @pytest.mark.parametrize("rewritten", ["mirror.test/vllm", "mirror.test/vllm:{}"])
    def test_that_a_webhook_stamps_and_rewrites_each_time_is_written_once(self, rewritten):
        story = Webhooked(rewritten)

        assert story.written(num_ticks=30) == [0]
        assert story.said("Drifted") == ("True", "TemplateEdited")
        assert story.said() == ("True", "Scaling")

    def test_that_a_webhook_makes_another_each_time_unseen_is_written_ever_later(self):
        # Seen too late to tell its work from an edit.
        story = Webhooked(rewritten="mirror.test/vllm:{}")

        assert story.written(num_ticks=20, every_s=180) == [0, 1, 2, 4, 7, 13]

    def test_that_a_webhook_rewrites_is_written_once_for_another_edit(self):
        story = Webhooked()
        story.written(num_ticks=3)
        story.has_probe, story.revision = False, story.revision + 1

        assert story.written(num_ticks=10, every_s=60) == [0]

    def test_that_git_syncs_every_ten_minutes_is_reapplied_ever_later(self):
        story, written = a_story(), []
        for number in range(12):
            story.edit()
            written += [number] if story.tick(600)[1] else []

        assert written == [0, 1, 2, 3, 4, 6, 10]
        assert story.said() == ("False", "ConflictingWriter")

    def test_is_corrected_at_once_again_after_a_day_without_an_edit(self):
        story = fought_for_the_template()
        story.tick(TEMPLATE_LONGEST_S)
        story.tick(TEMPLATE_LONGEST_S)
        story.edit()

        assert story.tick(15) == (None, True)
        assert story.said() == ("True", "Scaling")

    def test_of_before_that_is_put_back_whole_again_and_again_is_left(self):
        story = undone_once()

        written = minutes_written(story, Reverted.revert, minutes=8, is_template=True)

        assert written == [0, 1, 3, 7]
        assert story.said() == ("False", "ConflictingWriter")
        assert story.condition().message.startswith(
            "argocd-controller changed spec.containers[vllm].args --max-model-len, "
            "annotation tonnage.dev/spec-digest, "
        )

    def test_whose_record_a_webhook_takes_away_is_written_once(self):
        assert Unrecorded().written(num_ticks=50) == [0]

    def test_of_another_version_is_no_other_where_its_pods_are_restarted(self):
        story = Story(template_writers=managed_by("istio", "f:template"))
        found = {}

        def body():
            body = Story.body(story)
            body["metadata"]["annotations"][TEMPLATE_ANNOTATION] = "0" * 16
            body["spec"]["template"]["metadata"]["annotations"] = dict(found)
            return body

        story.body = body
        before = story.tick()
        found["kubectl.kubernetes.io/restartedAt"] = "2026-11-23T00:00:00Z"
        story.revision += 1

        assert [before, story.tick()] == [(None, False)] * 2
        assert story.said("Drifted") == ("Unknown", "UnknownBaseline")

    def test_that_stands_again_is_nobodys_to_fight_for(self):
        story = fought_for_the_template()
        held = story.said()
        story.image, story.template_writers, story.revision = OUR_IMAGE, [], story.revision + 1
        story.tick()

        assert held == ("False", "ConflictingWriter")
        assert story.said() == ("True", "Scaling")

    def test_that_may_not_be_put_back_holds_no_replicas(self):
        story = a_story(load=4.5, replicas=6)
        story.load = 0.5
        story.edit()
        asked = [story.tick(carried=REFUSED) for _ in range(60)]

        assert asked[0] == (None, True)
        assert story.replicas < 6

    def test_that_came_back_with_our_write_is_what_the_fleet_is_sized_by(self):
        slots = "--max-num-seqs"

        class Slots(Story):
            def body(self):
                body = super().body()
                arguments = body["spec"]["template"]["spec"]["containers"][0]["args"]
                arguments[arguments.index(slots) + 1] = "7"
                return body

        story, ours = Slots(), a_story()
        written = [story.tick(15)[1] for _ in range(20)]

        assert written == [True] + [False] * 19
        assert story.replicas > 2 * ours.replicas

    def test_is_counted_apart_from_replicas(self):
        story = a_story()
        for _ in range(3):
            story.edit()
            story.tick()
        story.set(1)

        assert story.tick(15) == (2, False)

    def test_that_is_left_holds_back_no_replicas(self):
        story = fought_for_the_template()
        story.load = 2.5

        assert story.tick() == (3, False)
        assert story.said() == ("False", "ConflictingWriter")

    def test_is_written_again_for_a_new_spec(self):
        story = fought_for_the_template()
        story.generation = 2

        assert story.tick(15) == (None, True)


class Forged(Story):
    """Another writes over what we recorded on the Deployment, or takes it away."""

    def __init__(self, record=None, by="mallory"):
        super().__init__()
        self.record, self.by, self.written = record or {}, by, None

    def body(self):
        body = super().body()
        annotations, entries = body["metadata"]["annotations"], body["metadata"]["managedFields"]
        ours = [each for each in RECORD.values() if each not in self.record]
        entries[-1:] = recorded_by("tonnage", *ours) if ours else []
        for name, value in self.record.items():
            del annotations[name]
            if value is not None:
                annotations[name] = value
                entries += recorded_by(self.by, name) if self.by else []
        return body

    def tick(self, *arguments, **changes):
        revision, image = self.revision, self.image
        asked = super().tick(*arguments, **changes)
        if asked[1]:
            self.record = {}
            self.revision = revision + (image != OUR_IMAGE)  # annotations alone count for none
        return asked


class TestTheRecord:
    @pytest.mark.parametrize("name", RECORD.values())
    def test_of_another_is_written_over_and_who_wrote_it_is_named(self, name):
        story = Forged()
        story.tick()
        story.record = {name: "0123456789abcdef"}

        assert story.tick() == (None, True)
        assert story.said("Drifted") == ("True", "TemplateEdited")
        assert story.condition("Drifted").message == f"mallory wrote annotation {name}"
        assert story.tick() == (None, False)
        assert story.said("Drifted") == ("False", "AsWritten")

    @pytest.mark.parametrize("name", RECORD.values())
    def test_that_was_taken_away_is_written_again(self, name):
        story = Forged()
        story.tick()
        story.record = {name: None}

        assert story.tick() == (None, True)
        assert story.condition("Drifted").message == f"somebody removed annotation {name}"
        assert story.tick() == (None, False)

    @pytest.mark.parametrize("by", ["mallory", None])
    @pytest.mark.parametrize("is_new", [True, False])
    @pytest.mark.parametrize("name", RECORD.values())
    def test_hides_no_edit_of_the_template(self, name, is_new, by):
        story = Forged(by=by)
        for _ in range(not is_new):
            story.tick()
        story.record = {name: "0123456789abcdef"}
        story.edit([])

        assert story.tick()[1]
        assert story.image == OUR_IMAGE
        told = story.condition("Drifted").message
        assert f"annotation {name}" in told
        assert (by or "somebody") in told

    @pytest.mark.parametrize("after_s", [15, 120])
    def test_hides_no_edit_of_the_template_after_it_was_written_back(self, after_s):
        story = Forged()
        story.tick()
        story.record = {DIGEST_ANNOTATION: "0123456789abcdef"}
        story.tick()
        story.edit([])
        written = [story.tick(after_s)[1] for _ in range(8)]

        assert any(written)
        assert story.said("Drifted") == ("False", "AsWritten")

    def test_that_is_forged_again_and_again_is_written_ever_later_and_stays_known(self):
        story = Forged()
        story.tick()

        def forge(story):
            story.record = dict.fromkeys(RECORD.values(), "0123456789abcdef")

        written = minutes_written(story, forge, minutes=32, is_template=True)

        assert written == SCHEDULE
        assert story.said() == ("False", "ConflictingWriter")
        assert story.condition().message.startswith("mallory changed annotation tonnage.dev/spec")

    def test_of_a_version_that_recorded_less_is_no_edit(self):
        story = Forged({TEMPLATE_ANNOTATION: None})

        assert [story.tick(), story.tick()] == [(None, False)] * 2
        assert story.said("Drifted") == ("Unknown", "UnknownBaseline")


class TestNone:
    """A Deployment that somebody else asks for no replica of is parked."""

    @pytest.mark.parametrize("spec", [{}, TARGET], ids=["ours", "a target"])
    def test_stays_none_until_the_spec_changes(self, spec):
        story = a_story(spec=spec)
        story.set(0, KUBECTL)

        assert [story.tick()[0] for _ in range(40)] == [None] * 40
        assert story.said() == ("False", "ScaledToZeroExternally")
        assert story.condition().message == (
            "kubectl (/scale) scaled it to 0 replicas: it stays at 0 until the spec changes or "
            "somebody scales it again"
        )
        story.generation = 2
        assert story.tick()[0] > 0
        assert story.tick()[0] is None
        assert story.said() == ("True", "Scaling")

    def test_is_found_so_by_another_process(self):
        story = Story(replicas=0, writers=KUBECTL)

        assert story.tick() == (None, False)
        assert story.said() == ("False", "ScaledToZeroExternally")
        assert story.said("Reconciling") is None

    def test_ends_when_somebody_asks_for_some(self):
        story = a_story()
        story.set(0, KUBECTL)
        story.tick()
        story.set(1, KUBECTL)

        assert story.tick() == (2, False)
        assert story.said() == ("True", "Scaling")

    def test_of_ours_is_brought_up(self):
        # Nobody else owns the number: the budget, or a write that was cut off, left it so.
        story = Story(replicas=0, writers=[])

        assert story.tick()[0] > 0

    def test_is_somebodys_where_the_api_server_names_no_owner(self):
        # It keeps none where the Deployment was made without a number, as ours are.
        story = Story(replicas=2, writers=[])
        story.tick()
        story.set(0, [])

        assert story.tick() == (None, False)
        assert story.said() == ("False", "ScaledToZeroExternally")

    def test_is_no_matter_of_a_paused_object(self):
        paused = {"scaling": {"mode": "Paused", "minReplicas": 1, "maxReplicas": 8}}
        story = Story(spec=paused, replicas=0, writers=KUBECTL)
        story.tick()

        assert story.said() == ("False", "Paused")


def test_who_undoes_corrections_is_found_out_where_the_api_server_names_no_owner():
    story = Story(replicas=1, writers=[], ours=[])
    written = [story.tick()[0]]
    for _ in range(4):
        story.tick(15)
        story.set(1, [])
        written.append(story.tick(15)[0])

    assert written == [2, 2, None, 2, None]
    assert story.said() == ("False", "ConflictingWriter")
    assert "somebody changed the replicas from 2 to 1" in story.condition().message


def test_what_was_written_and_is_not_seen_yet_is_nobodys_change():
    story, written = Story(replicas=1, writers=[], ours=[]), []
    for _ in range(9):
        written.append(story.tick()[0])
        story.replicas, story.revision = 1, 3  # the picture does not move

    assert written == [2] * 9
    assert story.said() == ("True", "Scaling")


def test_another_deployment_of_the_name_has_no_past():
    story = fought()
    first = story.body

    def another():
        body = first()
        body["metadata"]["uid"] = "another"
        return body

    story.body = another

    assert story.tick(15) == (2, False)
    assert story.said() == ("True", "Scaling")


class TestWhatWasNotWritten:
    """Corrections are of what was written, not of what was to be."""

    def times(self, story):
        return story.memory.objects[UID].writers.replicas.times

    def test_corrects_nobody_however_often_it_is_tried(self):
        story, asked = a_story(), []
        for _ in range(6):
            story.set(1)
            asked.append(story.tick(carried=STALE)[0])

        assert asked == [2] * 6
        assert story.said() == ("True", "Scaling")
        assert self.times(story) == 0
        assert story.tick() == (2, False)
        assert self.times(story) == 1

    def test_is_nobodys_change_where_it_does_not_stand_there(self):
        # The API server names no owner; each time something else of the Deployment changes.
        story = Story(replicas=1, writers=[], ours=[])
        story.tick()
        story.load = 2.5
        for carried in (STALE, NO_ANSWER) * 3:
            story.tick(15, carried=carried)
            story.revision += 1

        assert story.tick(15) == (3, False)
        assert self.times(story) == 0

    def test_as_far_as_is_known_is_ours_where_it_stands_there_all_the_same(self):
        story = Story(replicas=1, writers=[], ours=[])
        story.tick()
        for load, replicas in ((2.5, 3), (3.5, 4), (4.5, 5)):
            story.load = load
            assert story.tick(carried=NO_ANSWER, lands=True)[0] == replicas
            assert story.tick()[0] is None

        assert self.times(story) == 0
        assert story.memory.objects[UID].writers.our_replicas == 5

    def test_as_far_as_is_known_is_a_correction_once_it_is_seen(self):
        story, asked = a_story(), []
        for _ in range(4):
            story.set(1)
            asked.append(story.tick(15, carried=NO_ANSWER, lands=True)[0])
            asked.append(story.tick(15)[0])

        assert asked == [2, None, None, None, None, 2, None, None]  # a minute after it was seen

    def test_and_is_not_there_either_is_written_again_at_once(self):
        story = a_story()
        story.set(1)

        asked = [story.tick(15, carried=NO_ANSWER)[0] for _ in range(3)]

        assert asked == [2, 2, 2]
        assert self.times(story) == 0
        assert story.said() == ("True", "Scaling")

    def test_of_a_template_is_tried_again_a_minute_later(self):
        story = a_story()
        story.edit()

        asked = [story.tick(15, carried={WriteKind.TEMPLATE: Result(fate=Fate.UNKNOWN)})[1]]
        asked += [story.tick(15)[1] for _ in range(6)]

        assert asked.count(True) == 2

    def test_of_a_template_corrects_nobody_either(self):
        story, asked = a_story(), []
        for _ in range(5):
            story.edit()
            asked.append(story.tick(carried={WriteKind.TEMPLATE: Result()})[1])

        assert asked == [True] * 5
        assert story.memory.objects[UID].writers.template.times == 0
        assert story.said() == ("True", "Scaling")

    def test_of_a_template_leaves_the_correction_of_replicas_that_was(self):
        story = a_story()
        story.set(1)
        story.edit()

        assert story.tick(carried=REFUSED) == (2, True)
        assert self.times(story) == 1
        assert story.tick() == (None, True)
