"""Objects that are copied by the page on upgrades: freed of what the API server gave them."""

import re
import subprocess

import pytest
import yaml

from doc_blocks import SITE, blocks, commands

PAGE = SITE / "pages/how-to/upgrade.md"
SCRIPTS = {words[2] for block in blocks(PAGE) for words in commands(block) if words[0] == "sed"}
GIVEN = {
    "uid": "a1f8d0a4-6a4e-4c0e-9b2b-0c4f0f0a7f11",
    "resourceVersion": "4711",
    "creationTimestamp": "2026-07-01T10:00:00Z",
}


def a_config_map(name):
    metadata = {"name": name, "namespace": "tonnage-system", **GIVEN}
    data = {"state.json": '{"uid: ": 1, "namespace": "serving"}'}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def as_listed(*objects):
    """Return objects as ``kubectl get`` writes them by name: one is no list."""
    if len(objects) == 1:
        return objects[0]
    return {
        "apiVersion": "v1",
        "items": list(objects),
        "kind": "List",
        "metadata": {"resourceVersion": ""},
    }


def written(content):
    """Write as kubectl does, which quotes versions and times twice."""
    text = re.sub(r"^( +(?:resourceVersion|creationTimestamp): )'(.*)'$", r'\1"\2"',
                  yaml.safe_dump(content), flags=re.MULTILINE)  # fmt: skip
    # kubectl writes the items of a list without indentation, as PyYAML does.
    assert "\n- apiVersion" in text or content["kind"] != "List"
    return text


@pytest.mark.parametrize("script", sorted(SCRIPTS))
@pytest.mark.parametrize("number", [1, 2, 17])
def test_one_config_map_and_several_are_freed_of_what_they_had_been_given(script, number):
    objects = [a_config_map(f"tonnage-calibration-{k}") for k in range(number)]
    done = subprocess.run(  # noqa: S603
        ["/bin/sed", "-E", script],
        input=written(as_listed(*objects)), capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = yaml.safe_load(done.stdout)
    copied = found["items"] if number > 1 else [found]

    assert len(copied) == number
    assert number == 1 or found["metadata"] == {"resourceVersion": ""}
    moves = "capacity" in script
    for before, after in zip(objects, copied, strict=True):
        namespace = "capacity" if moves else "tonnage-system"
        assert after["metadata"] == {"name": before["metadata"]["name"], "namespace": namespace}
        assert after["data"] == before["data"]


def test_the_page_copies_within_a_cluster_and_to_another_namespace():
    assert len(SCRIPTS) == 2
