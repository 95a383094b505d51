"""``--scheduling-policy`` in ``engine.args``: rendered, and sized as first come first served."""

from dataclasses import replace

import pytest

from fleet_builders import SITE, a_model, a_sizing
from tonnage.api.objects import InvalidSpecError
from tonnage.catalog.gpu import UnsupportedEngineError, built_in_gpus
from tonnage.manifests.children import deployment
from tonnage.sizing.request import ask, look_up

PRIORITY = {"args": ["--scheduling-policy=priority"]}


def request_of(**engine):
    spec = a_model(engine={"version": "0.33", **engine}).spec
    return ask(spec, look_up(spec, built_in_gpus()))


@pytest.mark.parametrize("policy", ["priority", "fcfs"])
def test_the_container_has_it_and_is_called_as_the_image_is(policy):
    engine = {"version": "0.33", "args": [f"--scheduling-policy={policy}"]}
    made = deployment(a_model(engine=engine), a_sizing(), SITE)

    [container] = made["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["vllm", "serve"]
    assert container["args"][-1] == f"--scheduling-policy={policy}"


def test_it_is_sized_as_the_same_without():
    plain, by_priority = request_of(), request_of(**PRIORITY)

    assert replace(by_priority, engine_digest=plain.engine_digest) == plain


def test_a_release_whose_priorities_spoil_answers_is_refused():
    with pytest.raises(UnsupportedEngineError, match=r"needs engine\.version 0\.12; 0\.11"):
        request_of(version="0.11", **PRIORITY)
    assert request_of(version="0.12", **PRIORITY)


def test_code_by_its_import_path_is_refused():
    with pytest.raises(InvalidSpecError, match=r"--middleware is not allowed in engine\.args"):
        a_model(engine={"version": "0.33", "args": ["--middleware=a.b"]})
