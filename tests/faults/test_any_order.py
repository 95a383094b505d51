"""Whatever happens, in whatever order: a model of the cluster, and the whole loop in it.

Pods come late or not at all, watches lag behind by kind, metrics stop, the user changes the spec,
another scales, writes fail, and the process is killed and begins anew. Whatever it does then stays
within bounds, takes nothing away on missing data, and once all is well it comes to rest where a
process that knows nothing of all that would.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from loop_builders import replicas_of, show
from loop_story import PLACE, Killed, Story
from tonnage.cluster.calls import KubernetesError
from tonnage.fleet.lists import RELISTED
from tonnage.settings import Settings

SETTLING_TICKS = 75
"""Of a minute each: another writer is given half an hour of quiet, demand that came back is held
for an hour where starts take longer than the holding costs, and then replicas go."""
OUTAGE_TICKS = 15
"""Of a minute each: longer than the window after which replicas go."""
STEP = Settings.model_fields["max_scale_up_replicas"].default
PASSIVE = ("Recommend", "Paused")


class TheCluster(RuleBasedStateMachine):
    """What may happen, what must hold after each of it, and how it ends."""

    def __init__(self):
        super().__init__()
        self.mode, self.least, self.most = "Auto", 1, 8
        self.standing = 1
        """Replicas before the tick."""
        self.is_seen = True
        """The tick that wrote last had the figures of every pod."""
        self.looked_at = 0

    @initialize(load=st.sampled_from([0.0, 0.9, 3.5]))
    def begin(self, load):
        self.story = Story(load=load)
        self.world = self.story.world
        self.story.tick(2)
        self.look()

    def look(self):
        """Check what was written since the last look against what was known at that moment."""
        for call in self.world.kube.writes[self.looked_at :]:
            assert self.world.leads, call
            if self.mode in PASSIVE:
                assert "status" in call.path or "events" in call.path or "configmaps" in call.path
            if call.path.endswith("/scale"):
                self.check_scale(call.body["spec"]["replicas"])
        self.looked_at = len(self.world.kube.writes)

    def check_scale(self, replicas):
        assert self.least <= replicas <= self.most
        assert replicas <= max(self.standing + STEP, 2 * self.standing)
        if not self.is_seen:
            assert replicas >= min(self.standing, self.most), "taken away without any figures"

    def run(self, after_s):
        self.standing = replicas_of(self.world) if PLACE in self.story.objects else 1
        self.is_seen = not self.world.is_down
        self.world.now_s += after_s
        try:
            self.story.loop.tick()
        except Killed:
            self.look()
            self.story.begin()
        except KubernetesError:
            pass
        self.look()

    @rule(after_s=st.sampled_from([15, 60, 400]))
    def all_is_seen(self, after_s):
        self.story.follow()
        show(self.story.loop, self.world)
        self.run(after_s)

    @rule(kinds=st.sets(st.sampled_from([kind for kind, *_ in RELISTED]), max_size=3))
    def some_watches_lag_behind(self, kinds):
        self.story.follow()
        for kind, resource, selector in RELISTED:
            if kind not in kinds:
                listed = self.world.kube.list(resource.path(None), label_selector=selector)
                self.story.loop.store.reconcile(kind, listed)
        self.run(15)

    @rule()
    def pods_are_not_ready(self):
        self.story.follow(ready=False)
        show(self.story.loop, self.world)
        self.run(60)

    @rule(load=st.sampled_from([0.0, 0.4, 1.6, 3.9, 50.0]))
    def the_load_changes(self, load):
        self.story.load = load

    @rule(load=st.sampled_from([0.0, 0.4]))
    def the_load_goes_and_prometheus_stops_for_long(self, load):
        self.story.load = load
        self.all_is_seen(60)
        self.world.is_down = True
        for _ in range(OUTAGE_TICKS):
            self.all_is_seen(60)

    @rule()
    def prometheus_stops_or_comes_back(self):
        self.world.is_down = not self.world.is_down

    @rule(
        mode=st.sampled_from(["Auto", *PASSIVE]),
        bounds=st.sampled_from([(1, 8), (2, 3), (1, 1)]),
    )
    def the_user_changes_the_spec(self, mode, bounds):
        self.mode, (self.least, self.most) = mode, bounds
        least, most = bounds
        self.story.change(scaling={"mode": mode, "minReplicas": least, "maxReplicas": most})

    @precondition(lambda self: PLACE in self.story.objects)
    @rule(replicas=st.integers(1, 9))
    def another_scales(self, replicas):
        live = self.story.objects[PLACE]
        metadata = live["metadata"] | {"generation": live["metadata"].get("generation", 1) + 1}
        fields = {"f:spec": {"f:replicas": {}}}
        metadata["managedFields"] = [{"manager": "another", "fieldsV1": fields}]
        spec = live["spec"] | {"replicas": replicas}
        self.world.kube.put(PLACE, live | {"metadata": metadata, "spec": spec})

    @rule(number=st.integers(0, 4))
    def the_process_is_killed(self, number):
        self.story.kill_before(number)
        self.all_is_seen(60)
        self.story.begin()

    @rule(number=st.integers(0, 4), status=st.sampled_from([0, 403, 409, 500]))
    def writes_fail(self, number, status):
        first = len(self.world.kube.writes)

        def fail(verb, path):
            if verb not in {"get", "list"} and len(self.world.kube.writes) - first >= number:
                raise KubernetesError("not now", status=status)

        self.world.kube.fail = fail
        self.all_is_seen(15)
        self.world.kube.fail = lambda verb, path: None

    @rule()
    def the_lead_is_lost_for_a_tick(self):
        self.world.leads = False
        before = len(self.world.kube.writes)
        self.all_is_seen(15)

        assert self.world.kube.writes[before:] == []
        self.world.leads = True

    @invariant()
    def nobody_reaches_beyond_the_most(self):
        if hasattr(self, "story") and PLACE in self.story.objects:
            assert replicas_of(self.world) <= 9

    def teardown(self):
        if not hasattr(self, "story"):
            return
        self.world.is_down, self.story.load = False, 1.6
        self.the_user_changes_the_spec("Auto", (1, 8))
        for _ in range(SETTLING_TICKS):
            self.all_is_seen(60)
        rested = len(self.world.kube.writes)
        for _ in range(3):
            self.all_is_seen(60)

        assert self.story.writes_since(rested) == [], "it does not come to rest"
        assert replicas_of(self.world) == 2
        self.story.begin()
        self.all_is_seen(60)
        assert self.story.writes_since(rested) == [], "another process does not find it at rest"


def test_it_stays_within_bounds_and_comes_to_rest():
    run_state_machine_as_test(
        TheCluster, settings=settings(max_examples=12, stateful_step_count=20)
    )
