"""What the loop remembers: of nothing that is gone for an hour, and of no time that is to come."""

from fleet_builders import a_deployment_body, a_manifest, a_model, a_pod_body, a_replica_set_body
from fleet_builders import a_sizing as sizing_of
from fleet_ticks import RATE, FleetWorld, a_spec
from kube_double import KubeDouble
from loop_builders import SETTINGS, a_loop_asking, show
from reachable import leaves
from tonnage.cluster.kube import DEPLOYMENTS, MODEL_DEPLOYMENTS, PODS, REPLICA_SETS
from tonnage.estimate.calibration import Calibrations
from tonnage.estimate.posterior import SpeedPosterior
from tonnage.fleet.past import PastReader
from tonnage.fleet.write_queue import PATIENCE_S
from tonnage.units import DAY_S, HOUR_S, MINUTE_S

GONE = "gone"
"""In each name of what comes and goes."""


class Churn:
    """A loop over objects that come and go with their namespaces and pods; one stays."""

    def __init__(self):
        self.world = FleetWorld(kube=KubeDouble(), rates={}, namespaces={})
        self.loop = a_loop_asking(self.world.ask, self.world, writes_per_s=1000)
        self.loop.past = PastReader(ask=lambda *_: [], settings=SETTINGS)
        self.loop.past.begin(self.world.now_s)
        self.bring("stays", "team")

    def bring(self, name, namespace):
        spec = a_spec(0)
        model = a_model(name, namespace=namespace, **spec)
        live = a_deployment_body(model, replicas=1, sizing=sizing_of(model))
        owner, pod = a_replica_set_body(model), a_pod_body(f"{name}-0", model=model)
        for each in (live, owner, pod):
            each["metadata"].setdefault("labels", {})["tonnage.dev/managed"] = "true"
            each["metadata"]["namespace"] = namespace
        objects = self.world.kube.objects
        objects[MODEL_DEPLOYMENTS.path(namespace, name)] = a_manifest(
            name, namespace=namespace, **spec
        )
        objects[DEPLOYMENTS.path(namespace, name)] = live
        objects[REPLICA_SETS.path(namespace, owner["metadata"]["name"])] = owner
        objects[PODS.path(namespace, f"{name}-0")] = pod
        self.world.rates[f"{name}-0"] = RATE
        self.world.namespaces[f"{name}-0"] = namespace

    def take_away(self, namespace):
        objects, rates = self.world.kube.objects, self.world.rates
        for path in [each for each in objects if f"/namespaces/{namespace}/" in each]:
            del objects[path]
        for pod in [pod for pod, its in self.world.namespaces.items() if its == namespace]:
            del rates[pod], self.world.namespaces[pod]

    def answer_late(self, verb, path):
        """Play a webhook that holds up each write of a namespace that is about to go."""
        if verb in {"apply", "patch", "create"} and GONE in path:
            self.world.now_s += PATIENCE_S + 1

    def tick(self, after_s=MINUTE_S):
        self.world.now_s += after_s
        show(self.loop, self.world)
        self.world.lay_out()
        self.loop.tick()


def test_what_is_gone_for_an_hour_is_in_no_map():
    churn = Churn()
    churn.world.kube.fail = churn.answer_late
    for number in range(5):
        namespace = f"{GONE}-{number}"
        for index in range(3):
            churn.bring(f"{GONE}-{number}-{index}", namespace)
        for _ in range(3):
            churn.tick()
        churn.take_away(namespace)
        for _ in range(10):
            churn.tick()
    assert any(GONE in str(each) for _, each in leaves(churn.loop))
    for _ in range(HOUR_S // MINUTE_S):
        churn.tick()

    left = [way for way, each in leaves(churn.loop, without=(Calibrations,)) if GONE in str(each)]
    assert left == []


def times_to_come(churn):
    """Return the ways to numbers that are of a time more than an hour after now.

    Of when a speed was learned nothing but its age is taken, which is none then.
    """
    now_s = churn.world.now_s
    return [
        way
        for way, each in leaves(churn.loop, without=(Calibrations, SpeedPosterior))
        if way != ".ticked_at_s[]"  # of which the median counts
        and isinstance(each, float)
        and now_s + HOUR_S < each < now_s + 7 * DAY_S
    ]


def test_a_clock_that_went_forward_a_day_and_back_leaves_no_time_to_come():
    churn = Churn()
    for _ in range(5):
        churn.tick()
    churn.tick(DAY_S)
    assert times_to_come(churn) == []
    churn.tick()
    churn.tick(-DAY_S)

    assert times_to_come(churn) == []
