"""Deployments in the way: read a few at a time, in turn, and forgotten with what needs them."""

from fleet_builders import a_deployment_body
from kube_double import KubeDouble
from tonnage.cluster.calls import KubernetesError
from tonnage.cluster.kube import DEPLOYMENTS
from tonnage.fleet.references import ABSENT_S, MOST_LOOKS, UnlabelledWorkloads


def a_kube(*keys):
    return KubeDouble([(DEPLOYMENTS.path(*key), a_deployment_body(name=key[1])) for key in keys])


def many(namespace, number):
    return {(namespace, f"d{place:03}") for place in range(number)}


def those_read(taken, needed):
    return {key for key in needed if taken.of(key) is not None}


def test_are_read_until_they_are_gone():
    key = ("serving", "llama")
    kube = a_kube(key)
    taken = UnlabelledWorkloads(kube=kube, names={key})

    taken.look({key}, 0.0)
    assert taken.of(key).name == "llama"

    del kube.objects[DEPLOYMENTS.path(*key)]
    taken.look({key}, 15.0)
    assert taken.of(key) is None
    assert taken.names == set()


def reads(kube):
    """The names that are read from now on."""
    asked = []
    kube.fail = lambda verb, path: asked.append(path.rsplit("/", 1)[1])
    return asked


def test_are_found_where_nobody_met_them_and_looked_for_again_every_few_minutes():
    key, missing = ("serving", "llama"), ("serving", "mistral")
    kube = a_kube(key)
    taken = UnlabelledWorkloads(kube=kube, names=set())
    asked = reads(kube)

    taken.look({key, missing}, 0.0)
    taken.look({key, missing}, ABSENT_S - 1)
    assert asked == ["llama", "mistral", "llama"]
    assert taken.of(key).name == "llama"
    assert taken.names == {key}

    kube.put(DEPLOYMENTS.path(*missing), a_deployment_body(name="mistral"))
    taken.look({key, missing}, ABSENT_S)
    assert taken.of(missing).name == "mistral"


def test_that_the_writer_met_are_read_at_once():
    key = ("serving", "llama")
    kube = a_kube()
    taken = UnlabelledWorkloads(kube=kube, names=set())
    taken.look({key}, 0.0)
    kube.put(DEPLOYMENTS.path(*key), a_deployment_body())

    taken.names.add(key)
    taken.look({key}, 15.0)

    assert taken.of(key).name == "llama"


def test_are_no_more_than_a_few_in_a_tick_however_many_are_missing():
    kube = a_kube()
    asked = reads(kube)

    UnlabelledWorkloads(kube=kube, names=set()).look(many("blue", 5000), 0.0)

    assert len(asked) == MOST_LOOKS


def test_one_that_cannot_be_read_keeps_no_other_waiting():
    bad, good = ("serving", "bad"), ("serving", "good")
    kube = a_kube(bad, good)
    del kube.objects[DEPLOYMENTS.path(*bad)]["metadata"]["name"]
    taken = UnlabelledWorkloads(kube=kube, names=set())

    taken.look({bad, good}, 0.0)

    assert taken.of(bad) is None
    assert taken.of(good).name == "good"


def test_are_left_for_the_next_tick_where_the_api_server_does_not_answer():
    kube = a_kube()
    needed = {("serving", "a"), ("serving", "b")}
    taken = UnlabelledWorkloads(kube=kube, names=set())
    asked = []

    def refuse(_, path):
        asked.append(path.rsplit("/", 1)[1])
        raise KubernetesError("busy", status=503)

    kube.fail = refuse
    taken.look(needed, 0.0)
    taken.look(needed, 15.0)

    assert asked == ["a", "b"]


def test_are_forgotten_with_the_object_that_needed_the_name():
    key = ("serving", "llama")
    taken = UnlabelledWorkloads(kube=a_kube(key), names={key})
    taken.look({key}, 0.0)

    taken.look(set(), 15.0)

    assert taken.names == set()
    assert taken.of(key) is None


def test_of_one_namespace_keep_no_other_waiting_and_all_come_in_turn():
    crowd, one = many("blue", 3 * MOST_LOOKS), ("green", "llama")
    names = crowd | {one}
    taken = UnlabelledWorkloads(kube=a_kube(*names), names=set(names))

    taken.look(names, 0.0)
    assert taken.of(one) is not None
    assert len(those_read(taken, names)) == MOST_LOOKS

    for tick in range(1, 4):
        taken.look(names, 15.0 * tick)
    assert those_read(taken, names) == names


def test_stay_as_they_were_read_where_the_api_server_does_not_answer():
    key = ("serving", "llama")
    kube = a_kube(key)
    taken = UnlabelledWorkloads(kube=kube, names={key})
    taken.look({key}, 0.0)

    def refuse(*_):
        raise KubernetesError("busy", status=503)

    kube.fail = refuse
    taken.look({key}, 15.0)

    assert taken.of(key).name == "llama"
    assert taken.names == {key}


def test_that_are_too_large_are_known_by_their_size_until_they_are_small():
    key = ("serving", "llama")
    kube = a_kube(key)
    large = a_deployment_body(annotations={"note": "x" * 300_000})
    kube.put(DEPLOYMENTS.path(*key), large)
    taken = UnlabelledWorkloads(kube=kube, names=set())

    taken.look({key}, 0.0)
    assert taken.of(key) is None
    assert taken.oversized[key] > 300_000
    assert taken.names == {key}, "looked at in the next tick again"

    kube.put(DEPLOYMENTS.path(*key), a_deployment_body())
    taken.look({key}, 15.0)
    assert taken.of(key).name == "llama"
    assert taken.oversized == {}
