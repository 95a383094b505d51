"""``approve``: what is patched, and what is refused."""

import pytest
import yaml

from api_server_double import serving
from cli_builders import LLAMA, run

OBJECT = "/apis/tonnage.dev/v1alpha1/namespaces/serving/modeldeployments/llama-70b"
DIGESTS = ("0123456789abcdef", "fedcba9876543210")


def an_object(mode="Auto", *, annotations=None, digests=()):
    manifest = yaml.safe_load(LLAMA)
    manifest["metadata"]["annotations"] = annotations or {}
    manifest["spec"]["scaling"]["mode"] = mode
    proposals = [
        {"digest": each, "reason": "RolloutNeedsApproval", "message": "..."} for each in digests
    ]
    return manifest | {"status": {"proposals": proposals}}


@pytest.fixture
def ask(tmp_path):
    """Return a function that runs a command on an object: (result, patches)."""
    patches = []
    with serving(tmp_path, patches) as serve:

        def call(command, resource, *more):
            kubeconfig = serve({OBJECT: (200, resource)})
            result = run(command, "llama-70b", *more, "--kubeconfig", kubeconfig)
            return result, [body for _, body in patches]

        yield call


def test_approve_takes_the_only_plan_that_waits(ask):
    _, patches = ask("approve", an_object("Approve", digests=DIGESTS[:1]))

    assert patches == [{"metadata": {"annotations": {"tonnage.dev/approve": DIGESTS[0]}}}]


def test_approve_takes_the_plan_that_is_named(ask):
    _, patches = ask("approve", an_object("Approve", digests=DIGESTS), DIGESTS[1])

    assert patches == [{"metadata": {"annotations": {"tonnage.dev/approve": DIGESTS[1]}}}]


@pytest.mark.parametrize(
    ("resource", "more", "said"),
    [
        (an_object("Auto"), (), "mode is Auto"),
        (an_object("Approve"), (), "no plan waits"),
        (an_object("Approve", digests=DIGESTS), (), "name the DIGEST"),
        (an_object("Approve", digests=DIGESTS[:1]), (DIGESTS[1],), "name the DIGEST"),
    ],
)
def test_approve_refuses_what_is_not_clear(ask, resource, more, said):
    result, patches = ask("approve", resource, *more)

    assert (result.exit_code, patches) == (2, [])
    assert said in result.stderr
