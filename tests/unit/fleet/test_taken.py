"""Deployments in the way: read a few at a time, in turn, and forgotten with what needs them."""

from fleet_builders import a_deployment_body
from kube_double import KubeDouble
from tonnage.cluster.errors import KubernetesError
from tonnage.cluster.kube import DEPLOYMENTS
from tonnage.fleet.taken import MOST_READS, Taken


def a_kube(*keys):
    return KubeDouble([(DEPLOYMENTS.path(*key), a_deployment_body(name=key[1])) for key in keys])


def many(namespace, number):
    return {(namespace, f"d{place:03}") for place in range(number)}


def those_read(taken, needed):
    return {key for key in needed if taken.of(key) is not None}


def test_are_read_until_they_are_gone():
    key = ("serving", "llama")
    kube = a_kube(key)
    taken = Taken(kube=kube, names={key})

    taken.look({key}, 0.0)
    assert taken.of(key).name == "llama"

    del kube.objects[DEPLOYMENTS.path(*key)]
    taken.look({key}, 15.0)
    assert taken.of(key) is None
    assert taken.names == set()


def test_are_forgotten_with_the_object_that_needed_the_name():
    key = ("serving", "llama")
    taken = Taken(kube=a_kube(key), names={key})
    taken.look({key}, 0.0)

    taken.look(set(), 15.0)

    assert taken.names == set()
    assert taken.of(key) is None


def test_of_one_namespace_keep_no_other_waiting_and_all_come_in_turn():
    crowd, one = many("blue", 3 * MOST_READS), ("green", "llama")
    names = crowd | {one}
    taken = Taken(kube=a_kube(*names), names=set(names))

    taken.look(names, 0.0)
    assert taken.of(one) is not None
    assert len(those_read(taken, names)) == MOST_READS

    for tick in range(1, 4):
        taken.look(names, 15.0 * tick)
    assert those_read(taken, names) == names


def test_stay_as_they_were_read_where_the_api_server_does_not_answer():
    key = ("serving", "llama")
    kube = a_kube(key)
    taken = Taken(kube=kube, names={key})
    taken.look({key}, 0.0)

    def refuse(*_):
        raise KubernetesError("busy", status=503)

    kube.fail = refuse
    taken.look({key}, 15.0)

    assert taken.of(key).name == "llama"
    assert taken.names == {key}
