"""Manifests that are kept parsed: each version once, and as long as it stands there."""

import pytest

from fleet_builders import a_manifest, a_model
from tonnage.api.objects import InvalidSpecError
from tonnage.fleet.references import ManifestCache, parse_manifest
from tonnage.fleet.views import model_view


def views(*names, **spec):
    return [model_view(a_manifest(name, **spec)) for name in names]


def test_an_object_is_parsed_once():
    manifests = ManifestCache()

    first, second = (manifests.parse(views("a"))["uid-of-a"] for _ in range(2))

    assert first == a_model("a")
    assert second is first


def test_a_version_that_was_replaced_is_forgotten():
    manifests = ManifestCache()
    before = manifests.parse(views("a"))["uid-of-a"]
    manifests.parse(views("a", contextLength=4096, generation=2))

    assert manifests.parse(views("a"))["uid-of-a"] is not before


def test_objects_that_ask_for_the_same_share_a_spec():
    found = ManifestCache().parse([*views("a", "b"), *views("c", scaling={"maxReplicas": 3})])
    specs = [found[uid].spec for uid in ("uid-of-a", "uid-of-b", "uid-of-c")]

    assert specs[0] is specs[1]
    assert specs[2] != specs[0]


@pytest.mark.parametrize(("room", "is_kept"), [(1000, (True, False)), (10_000, (True, True))])
def test_no_more_are_kept_than_there_is_room_for(room, is_kept):
    manifests = ManifestCache(most_characters=room)
    both = views("a", "b")
    assert 500 < len(both[0].manifest) < 1000

    first, second = (manifests.parse(both) for _ in range(2))

    assert tuple(second[uid] is first[uid] for uid in ("uid-of-a", "uid-of-b")) == is_kept


def test_what_is_wrong_is_kept_without_the_frames_that_found_it():
    body = a_manifest()
    body["spec"]["scaling"] = {}

    found = parse_manifest(model_view(body).manifest)

    assert isinstance(found, InvalidSpecError)
    assert (found.__cause__, found.__context__, found.__traceback__) == (None, None, None)


def test_what_a_wrong_manifest_says_is_repeated_without_what_may_be_a_secret():
    body = a_manifest(contextLength="s3cr3t-value-17")

    found = str(parse_manifest(model_view(body).manifest))

    assert found == "spec.contextLength: Input should be a valid integer (read: '[redacted]')"


def test_of_a_mistake_in_the_pod_template_alone_the_rest_is_read():
    template = {"spec": {"hostNetwork": True}}
    body = a_manifest(pods={"template": template, "maxSurge": 0})

    found = parse_manifest(model_view(body).manifest)

    assert found.problem.startswith("spec.pods.template.spec.hostNetwork: must not be set")
    assert (found.spec.pods.template, found.spec.pods.max_surge) == (None, 0)

    body["spec"]["contextLength"] = 0
    neither = parse_manifest(model_view(body).manifest)

    assert isinstance(neither, InvalidSpecError)
    assert "spec.contextLength: " in str(neither)
    assert "spec.pods.template.spec.hostNetwork: " in str(neither)
