"""Claims: read by name, kept a while, and refused where several replicas cannot mount them."""

import pytest

from fleet_builders import a_manifest, a_model
from kube_double import KubeDouble
from loop_builders import a_loop, a_world, condition, status_of, tick
from tonnage.cluster.calls import KubernetesError
from tonnage.cluster.kube import CLAIMS
from tonnage.fleet.references import AGE_S, Referenced, access_modes, claim_of

PLACE = CLAIMS.path("serving", "weights")
PODS = {"modelCacheClaim": "weights"}


def a_claim(*modes):
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "weights", "namespace": "serving"},
        "spec": {"accessModes": list(modes)},
    }


def a_world_with(*modes, most=8, surge=1):
    scaling = {"minReplicas": 1, "maxReplicas": most}
    world = a_world(a_manifest(pods=PODS | {"maxSurge": surge}, scaling=scaling))
    world.kube.put(PLACE, a_claim(*modes))
    return world


class TestTheLoop:
    @pytest.mark.parametrize("mode", ["ReadWriteOnce", "ReadWriteOncePod"])
    def test_several_replicas_on_a_claim_of_one_node_are_refused_in_words(self, mode):
        world = a_world_with(mode)

        tick(a_loop(world), world)

        assert condition(world, "Stalled") == ("True", "ClaimNotShared")
        [said] = [c["message"] for c in status_of(world)["conditions"] if c["type"] == "PlanValid"]
        assert f"weights is {mode}" in said
        assert "maxReplicas is 8" in said
        assert not any("/deployments/" in call.path for call in world.kube.writes)

    @pytest.mark.parametrize(
        ("modes", "most"),
        [
            (["ReadWriteOnce"], 1),
            (["ReadWriteMany"], 8),
            (["ReadOnlyMany", "ReadWriteOnce"], 8),
            ([], 8),
        ],
    )
    def test_one_replica_or_a_claim_for_many_is_not(self, modes, most):
        world = a_world_with(*modes, most=most)

        done = tick(a_loop(world), world)

        assert "apply deployments/llama" in done

    def test_an_update_whose_pod_would_wait_for_the_volume_of_the_old_one_is_refused(self):
        world = a_world_with("ReadWriteOncePod", most=1, surge=1)

        tick(a_loop(world), world)

        assert condition(world, "Stalled") == ("True", "ClaimNotShared")
        [said] = [c["message"] for c in status_of(world)["conditions"] if c["type"] == "PlanValid"]
        assert "take pods.maxSurge 0" in said

    def test_a_claim_that_comes_after_its_object_is_refused_in_the_next_tick(self):
        world = a_world_with("ReadWriteOnce")
        claim = world.kube.objects.pop(PLACE)
        loop = a_loop(world)
        tick(loop, world)
        assert condition(world, "PlanValid")[0] == "True"
        world.kube.put(PLACE, claim)

        tick(loop, world)

        assert condition(world, "PlanValid") == ("False", "ClaimNotShared")

    def test_a_claim_that_may_not_be_read_refuses_nothing(self):
        world = a_world_with("ReadWriteOnce")

        def refused(verb, path):
            if path == PLACE:
                raise KubernetesError("not yours", status=403)

        world.kube.fail = refused

        assert "apply deployments/llama" in tick(a_loop(world), world)

    def test_an_operator_that_only_scales_says_what_to_do_without_a_target(self):
        world = a_world()
        loop = a_loop(world, mode="scaleOnly")

        done = tick(loop, world)

        assert "apply modeldeployments/llama/status" in done
        assert "apply deployments/llama" not in done
        assert condition(world, "Stalled") == ("True", "ScaleOnly")
        assert "spec.scaleTarget" in status_of(world)["conditions"][1]["message"]
        assert status_of(world)["plan"]["replicas"] > 0


def claims_in(kube):
    return Referenced(kube=kube, resource=CLAIMS, part=access_modes, tick_s=15)


class TestReading:
    def test_a_claim_is_read_once_for_all_and_again_after_a_while(self):
        asked = []
        kube = KubeDouble([(PLACE, a_claim("ReadWriteOnce"))])
        kube.fail = lambda verb, path: asked.append(path)
        claims = claims_in(kube)

        for now_s in (0, 1, AGE_S - 1, AGE_S):
            for name in ("one", "two"):
                found = claims.of(claim_of(a_model(name, pods=PODS)), now_s)

        assert found == ("ReadWriteOnce",)
        assert asked == [PLACE] * 2

    def test_one_that_comes_late_is_seen_in_the_next_tick(self):
        kube = KubeDouble()
        claims = claims_in(kube)
        model = a_model(pods=PODS)
        assert claims.of(claim_of(model), 0) is None
        kube.put(PLACE, a_claim("ReadWriteOnce"))

        assert claims.of(claim_of(model), 14) is None
        assert claims.of(claim_of(model), 15) == ("ReadWriteOnce",)

    def test_one_that_was_read_holds_while_it_cannot_be_read(self):
        kube = KubeDouble([(PLACE, a_claim("ReadWriteOnce"))])
        claims = claims_in(kube)
        model = a_model(pods=PODS)
        claims.of(claim_of(model), 0)

        def down(verb, path):
            raise KubernetesError("down", status=503)

        kube.fail = down

        assert claims.of(claim_of(model), AGE_S) == ("ReadWriteOnce",)

    def test_what_nobody_names_any_more_is_forgotten(self):
        claims = claims_in(KubeDouble([(PLACE, a_claim("ReadWriteOnce"))]))
        claims.of(claim_of(a_model(pods=PODS)), 0)

        claims.forget({claim_of(a_model())})

        assert claims._read == {}
