"""The Kubernetes client against a server that answers as a test says."""

import itertools
import json
import socket

import pytest

from http_double import Reply, a_kubeconfig, answering, json_reply, serving
from tonnage.cluster.calls import ConflictError, KubernetesError, WriteFencedError
from tonnage.cluster.kube import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    LEASES,
    MODEL_DEPLOYMENTS,
    NODES,
    POD_MONITORS,
    PODS,
    KubeApi,
    load_client,
)
from tonnage.units import MIB

PATH = DEPLOYMENTS.path("serving", "llama")
NOTHING = json_reply({"kind": "Status", "message": "not found"}, status=404)
THING = {"kind": "Thing", "metadata": {"name": "x"}}


@pytest.fixture
def connect(tmp_path):
    """Return a client for an address and the list of seconds that it would have slept."""
    slept = []

    def to(url):
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(a_kubeconfig(url))
        kube = KubeApi(load_client(str(kubeconfig)), sleep=slept.append, chance=lambda: 0.0)
        return kube, slept

    return to


@pytest.fixture
def exchange(connect):
    """Do something against a server with these replies; return (result, requests, slept)."""

    def run(action, *replies):
        with serving(answering(*replies)) as server:
            kube, slept = connect(server.url)
            return action(kube), server.asked, slept

    return run


@pytest.fixture
def failure(connect):
    """Return the error that these replies give, what was asked, and what was slept."""

    def run(action, *replies):
        with serving(answering(*replies)) as server:
            kube, slept = connect(server.url)
            with pytest.raises(KubernetesError) as caught:
                action(kube)
            return caught.value, server.asked, slept

    return run


def test_paths_are_those_of_the_api():
    assert PODS.path(None) == "/api/v1/pods"
    assert NODES.path(None, "gpu-1") == "/api/v1/nodes/gpu-1"
    assert CONFIG_MAPS.path("ns", "x") == "/api/v1/namespaces/ns/configmaps/x"
    assert DEPLOYMENTS.path("ns", "x", "scale") == (
        "/apis/apps/v1/namespaces/ns/deployments/x/scale"
    )
    assert MODEL_DEPLOYMENTS.path("ns") == (
        "/apis/tonnage.dev/v1alpha1/namespaces/ns/modeldeployments"
    )


def test_no_name_can_climb_out_of_its_path():
    assert CONFIG_MAPS.path("../x", "a/b?c") == "/api/v1/namespaces/..%2Fx/configmaps/a%2Fb%3Fc"


class TestVerbs:
    def test_get_returns_the_object(self, exchange):
        found, [request], _ = exchange(lambda kube: kube.get(PATH), json_reply(THING))

        assert found == THING
        assert (request.method, request.path) == ("GET", PATH)
        assert request.headers["Authorization"] == "Bearer secret"

    def test_get_returns_none_where_there_is_nothing(self, exchange):
        found, requests, _ = exchange(lambda kube: kube.get(PATH), NOTHING)

        assert found is None
        assert len(requests) == 1

    @pytest.mark.parametrize(("force", "written"), [(True, "true"), (False, "false")])
    def test_apply_sends_the_dict_as_an_apply_patch(self, exchange, force, written):
        _, [request], _ = exchange(
            lambda kube: kube.apply(PATH, THING, manager="tonnage", force=force),
            json_reply(THING),
        )

        assert request.method == "PATCH"
        assert request.headers["Content-Type"] == "application/apply-patch+yaml"
        assert request.query == {
            "fieldManager": "tonnage", "force": written, "fieldValidation": "Strict",
        }  # fmt: skip
        assert request.json() == THING

    def test_merge_patch_sends_the_dict_as_a_merge_patch(self, exchange):
        _, [request], _ = exchange(
            lambda kube: kube.merge_patch(PATH, THING, manager="tonnage-scale"), json_reply(THING)
        )

        assert request.method == "PATCH"
        assert request.headers["Content-Type"] == "application/merge-patch+json"
        assert request.query == {"fieldManager": "tonnage-scale"}
        assert request.json() == THING

    @pytest.mark.parametrize(("verb", "method"), [("create", "POST"), ("replace", "PUT")])
    def test_create_and_replace_send_json(self, exchange, verb, method):
        _, [request], _ = exchange(lambda kube: getattr(kube, verb)(PATH, THING), json_reply(THING))

        assert request.method == method
        assert request.headers["Content-Type"] == "application/json"
        assert request.json() == THING

    @pytest.mark.parametrize("reply", [json_reply(THING), NOTHING])
    def test_delete_names_the_very_object_and_takes_gone_for_done(self, exchange, reply):
        _, asked, _ = exchange(lambda kube: kube.delete(PATH, uid="u-1"), reply)

        [request] = asked
        assert (request.method, request.path) == ("DELETE", PATH)
        assert request.json()["preconditions"] == {"uid": "u-1"}

    def test_list_reads_all_chunks_and_keeps_the_selector(self, exchange):
        pages = [
            json_reply({"items": [{"n": 1}, {"n": 2}], "metadata": {"continue": "more"}}),
            json_reply({"items": [{"n": 3}], "metadata": {"continue": ""}}),
        ]

        found, requests, _ = exchange(
            lambda kube: list(kube.list(PODS.path(None), label_selector="a=b")), *pages
        )

        assert found == [{"n": 1}, {"n": 2}, {"n": 3}]
        assert [request.query for request in requests] == [
            {"limit": "10", "labelSelector": "a=b"},
            {"limit": "20", "labelSelector": "a=b", "continue": "more"},
        ]

    def test_list_asks_for_more_objects_while_they_are_small_and_for_fewer_where_not(self, connect):
        sizes = {0: 10, 1: 10, 2: 10, 3: 10, 4: 10, 5: 9 * MIB, 6: 10}

        def answer(asked):
            number = int(asked.query.get("continue", "0"))
            body = {"metadata": {"name": f"p{number}", "labels": {"a": "x" * sizes[number]}}}
            more = {} if number == 6 else {"continue": str(number + 1)}
            return json_reply({"metadata": more, "items": [body]})

        with serving(answer) as server:
            kube, _ = connect(server.url)
            found = list(kube.list(PODS.path(None)))

        assert [each["metadata"]["name"] for each in found] == [f"p{each}" for each in range(7)]
        assert ["oversizedBytes" in each for each in found] == [False] * 5 + [True, False]
        limits = [request.query["limit"] for request in server.asked]
        assert limits == ["10", "20", "40", "80", "100", "100", "10", "5", "2", "1", "1"]

    def test_list_asks_for_fewer_objects_where_many_do_not_come_in_time(self, exchange):
        page = {"metadata": {"continue": "more"}, "items": []}
        replies = [json_reply(page), Reply(status=504), json_reply({"items": [{"n": 1}]})]

        found, requests, slept = exchange(lambda kube: list(kube.list("/x")), *replies)

        assert found == [{"n": 1}]
        assert [each.query["limit"] for each in requests] == ["10", "20", "10"]
        assert slept == []

    @pytest.mark.parametrize("ask", [lambda kube: list(kube.list("/x")), lambda k: k.get("/x")])
    def test_an_answer_without_end_is_read_to_16_mib(self, connect, ask):
        with serving(lambda _: Reply(pieces=itertools.repeat(b"x" * MIB))) as server:
            kube, slept = connect(server.url)
            with pytest.raises(KubernetesError, match="/x: more than 16777216 bytes"):
                ask(kube)

        assert slept == []

    @pytest.mark.parametrize("empty", [{"items": None, "metadata": {}}, {"items": []}])
    def test_list_may_be_empty(self, exchange, empty):
        assert exchange(lambda kube: list(kube.list("/x")), json_reply(empty))[0] == []

    @pytest.mark.parametrize(
        "ask", [lambda kube: list(kube.list("/x")), lambda kube: kube.get("/x")]
    )
    @pytest.mark.parametrize("page", [{"metadata": None}, {}])
    def test_what_is_no_answer_is_not_read_as_nothing(self, exchange, ask, page):
        with pytest.raises(KubernetesError, match="GET /x: no "):
            exchange(ask, json_reply(page))

    @pytest.mark.parametrize(
        ("reply", "served"),
        [
            (json_reply({"resources": [{"name": "podmonitors"}]}), True),
            (json_reply({"resources": [{"name": "servicemonitors"}]}), False),
            (json_reply({"resources": None}), False),
            (NOTHING, False),
        ],
    )
    def test_serves_tells_whether_a_kind_is_known(self, exchange, reply, served):
        answer, [request], _ = exchange(lambda kube: kube.serves(POD_MONITORS), reply)

        assert answer is served
        assert request.path == "/apis/monitoring.coreos.com/v1"


def get(kube):
    return kube.get(PATH)


def create(kube):
    return kube.create(LEASES.path("ns"), THING)


class TestRefusals:
    def test_a_conflict_is_told_at_once(self, failure):
        status = {"kind": "Status", "message": "the object has been modified"}

        error, requests, _ = failure(
            lambda kube: kube.replace(PATH, THING), json_reply(status, status=409)
        )

        assert isinstance(error, ConflictError)
        assert error.status == 409
        assert "the object has been modified" in str(error)
        assert len(requests) == 1

    @pytest.mark.parametrize("status", [400, 401, 403, 410, 422])
    def test_a_refusal_for_good_is_not_tried_again(self, failure, status):
        error, requests, _ = failure(get, json_reply({"message": "no"}, status=status))

        assert error.status == status
        assert len(requests) == 1

    def test_a_server_error_is_tried_again(self, exchange):
        found, requests, slept = exchange(get, Reply(status=500), json_reply(THING))

        assert found == THING
        assert len(requests) == 2
        assert slept == [0.5]

    @pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
    def test_three_times_and_no_more(self, failure, status):
        error, requests, slept = failure(get, Reply(status=status))

        assert error.status == status
        assert len(requests) == 3
        assert slept == [0.5, 1.0]

    @pytest.mark.parametrize(
        ("retry_after", "first_s"),
        [
            ("0", 0.5),
            ("2", 2.0),
            ("30", 5.0),
            ("-5", 0.5),
            ("inf", 5.0),
            ("soon", 0.5),
            ("Wed, 21 Oct 2099 07:28:00 GMT", 0.5),
        ],
    )
    def test_waits_as_long_as_it_is_told_but_never_long(self, exchange, retry_after, first_s):
        busy = Reply(status=429, headers={"Retry-After": retry_after})

        found, requests, slept = exchange(get, busy, json_reply(THING))

        assert found == THING
        assert len(requests) == 2
        assert slept == [first_s]

    @pytest.mark.parametrize(("status", "asked"), [(429, 1), (503, 3)])
    def test_a_busy_server_is_not_where_somebody_waits(self, failure, status, asked):
        error, requests, _ = failure(lambda kube: get(kube.hasty()), Reply(status=status))

        assert error.status == status
        assert len(requests) == asked

    @pytest.mark.parametrize("verb", ["apply", "merge_patch", "replace"])
    def test_writes_that_may_be_repeated_are(self, exchange, verb):
        more = {"apply": {"manager": "m", "force": True}, "merge_patch": {"manager": "m"}}

        def write(kube):
            return getattr(kube, verb)(PATH, THING, **more.get(verb, {}))

        found, requests, _ = exchange(write, Reply(status=503), json_reply(THING))

        assert found == THING
        assert len(requests) == 2

    def test_a_create_is_not_repeated(self, failure):
        # Its answer may have been lost after it took effect.
        _, requests, _ = failure(create, Reply(status=500))

        assert len(requests) == 1

    def test_chance_adds_up_to_half_of_a_pause(self, tmp_path):
        # Clients that were refused together must not come back together.
        slept, kubeconfig = [], tmp_path / "kubeconfig"
        with serving(answering(Reply(status=429))) as server:
            kubeconfig.write_text(a_kubeconfig(server.url))
            client = load_client(str(kubeconfig))
            kube = KubeApi(client, sleep=slept.append, chance=iter([0.5, 1.0]).__next__)
            with pytest.raises(KubernetesError):
                kube.get(PATH)

        assert slept == [0.5 * 1.25, 1.0 * 1.5]

    def test_nobody_listens(self, connect):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        kube, slept = connect(f"http://127.0.0.1:{port}")

        with pytest.raises(KubernetesError) as caught:
            kube.get(PATH)

        assert caught.value.status == 0
        assert slept == [0.5, 1.0]

    def test_it_leads_elsewhere(self, failure):
        with serving(answering(json_reply(THING))) as elsewhere:
            error, _, _ = failure(get, Reply(status=302, headers={"Location": elsewhere.url}))

        assert error.status in {0, 302}
        assert elsewhere.asked == []

    @pytest.mark.parametrize(
        "body", [b"<html>Sign in</html>", b"", b'{"kind": "Th', b"\xff\xfe", b"[]", b"7", b"null"]
    )
    def test_an_answer_that_is_no_object_is_a_failure_of_the_world(self, failure, body):
        error, _, _ = failure(get, Reply(body=body))

        assert PATH in str(error)

    @pytest.mark.parametrize(
        "body",
        [
            b"<html>" + b"x" * 200_000,
            json.dumps({"message": "x" * 200_000}).encode(),
            b"[]",
            b'{"message": {"a": 1}}',
            b"\xff\xfe",
        ],
    )
    def test_messages_are_short_and_name_what_was_asked(self, failure, body):
        error, _, _ = failure(get, Reply(status=403, body=body))

        assert len(str(error)) <= 300
        assert str(error).startswith(f"GET {PATH}: 403")

    def test_a_path_of_what_was_sent_can_be_read_with_a_mistake_in_it_and_no_other(self, failure):
        sent = {"spec": {"containers": [{"name": "s3cr3tpw", "nodeSelektr": {}}]}}
        said = '.spec.containers[name="a"].nodeSelektr: field not declared, not .spec.hunter2xq'

        error, _, _ = failure(
            lambda kube: kube.apply(PATH, sent, manager="tonnage", force=False),
            json_reply({"message": said}, status=422),
        )

        assert ".spec.containers" in error.detail
        assert ".nodeSelektr: field not declared" in error.detail
        assert "hunter2xq" not in error.detail

    def test_the_token_stands_in_no_message(self, failure):
        error, _, _ = failure(get, Reply(status=401, body=b'{"message": "Unauthorized"}'))

        assert "secret" not in str(error)


DENIAL = 'admission webhook "quota.example.test" denied the request: not today'


class TestWhatFailsForOneAloneIsNoOverload:
    """Of the server, which is asked for the whole fleet's sake."""

    @pytest.mark.parametrize(
        ("status", "message", "is_overload", "is_refusal"),
        [
            (429, "too many requests", True, False),
            (503, "", True, False),
            (500, "failed calling webhook: context deadline exceeded", False, False),
            (500, "etcdserver: request is too large", False, True),
            (500, "failed to create typed patch object (a/b): .spec.x: expected map", False, True),
            (413, "Request entity too large: limit is 3145728", False, True),
            (422, "status.plan: Invalid value", False, True),
            (403, DENIAL, False, True),
            (429, DENIAL, False, True),
            (503, DENIAL, False, True),
        ],
    )
    def test_by_what_it_says(self, failure, status, message, is_overload, is_refusal):
        error, requests, _ = failure(patch, json_reply({"message": message}, status=status))

        assert (error.is_overload, error.is_refusal) == (is_overload, is_refusal)
        assert len(requests) == (1 if is_refusal else 3)
        assert error.is_of_object is not is_overload

    @pytest.mark.parametrize("others_are_answered", [False, True])
    def test_where_no_answer_comes_by_whether_another_gets_one_meanwhile(
        self, connect, others_are_answered
    ):
        def answer(asked):
            if asked.method == "PATCH":
                if others_are_answered:
                    kube.get(PATH)
                raise ConnectionAbortedError
            return json_reply(THING)

        with serving(answer) as server:
            kube, _ = connect(server.url)
            with pytest.raises(KubernetesError) as caught:
                patch(kube)

        assert caught.value.is_overload is not others_are_answered
        assert not caught.value.is_undone

    def test_a_write_that_hangs_is_left_to_the_next_tick(self, tmp_path):
        kubeconfig = tmp_path / "kubeconfig"

        def hang(_):
            server.stopping.wait()
            return json_reply(THING)

        with serving(hang) as server:
            kubeconfig.write_text(a_kubeconfig(server.url))
            kube = KubeApi(load_client(str(kubeconfig)), timeout_s=(5, 0.1))
            with pytest.raises(KubernetesError, match="ReadTimeoutError"):
                patch(kube)
            assert len(server.asked) == 1
            server.stopping.set()

    def test_its_words_are_one_short_line(self, failure):
        said = "no\n\x1b[31m  more " + "x " * 250

        error, _, _ = failure(patch, json_reply({"message": said}, status=403))

        assert error.words == ("no [31m more " + "x " * 250)[:200]


def fence_of(asked, *, last):
    """A fence that lets through attempts up to this one."""

    def fence():
        asked.append(len(asked) + 1)
        if len(asked) > last:
            raise WriteFencedError("the Lease was lost")

    return fence


def patch(kube):
    return kube.merge_patch(PATH, THING, manager="m")


class TestMay:
    """Whether we have a right, as the API server says."""

    @pytest.mark.parametrize(
        ("reply", "may"),
        [
            (json_reply({"status": {"allowed": True}}), True),
            (json_reply({"status": {"allowed": False, "reason": "no rule"}}), False),
            (json_reply({}), True),
            (Reply(status=403), True),
            (Reply(status=404), True),
        ],
    )
    def test_is_so_unless_it_says_no(self, exchange, reply, may):
        found, [asked], _ = exchange(
            lambda kube: kube.may("patch", MODEL_DEPLOYMENTS, "blue", sub="status"), reply
        )

        assert found is may
        assert json.loads(asked.body)["spec"]["resourceAttributes"] == {
            "verb": "patch",
            "group": "tonnage.dev",
            "resource": "modeldeployments",
            "subresource": "status",
            "namespace": "blue",
        }

    def test_is_not_known_where_nobody_answers(self, failure):
        error, _, _ = failure(
            lambda kube: kube.may("patch", MODEL_DEPLOYMENTS, None, sub="status"),
            *[Reply(status=503)] * 3,
        )

        assert error.status == 503


class TestFence:
    def test_is_asked_before_each_attempt_at_a_write(self, exchange):
        asked = []

        found, requests, _ = exchange(
            lambda kube: patch(kube.with_fence(fence_of(asked, last=3))),
            *[Reply(status=503), Reply(status=503), json_reply(THING)],
        )

        assert found == THING
        assert len(requests) == 3
        assert asked == [1, 2, 3]

    def test_is_not_asked_before_a_read(self, exchange):
        asked = []

        exchange(lambda kube: get(kube.with_fence(fence_of(asked, last=0))), json_reply(THING))

        assert asked == []

    def test_that_closes_stops_the_first_attempt(self, connect):
        with serving(answering(json_reply(THING))) as server:
            kube, _ = connect(server.url)
            with pytest.raises(WriteFencedError, match="the Lease was lost"):
                patch(kube.with_fence(fence_of([], last=0)))

        assert server.asked == []

    def test_that_closes_stops_a_write_that_is_fenced_for_another_reason_too(self, connect):
        asked = []
        with serving(answering(json_reply(THING))) as server:
            kube, _ = connect(server.url)
            with pytest.raises(WriteFencedError, match="the Lease was lost"):
                patch(kube.with_fence(fence_of([], last=0)).with_fence(fence_of(asked, last=1)))

        assert server.asked == []
        assert asked == []

    def test_is_the_lease_first_and_the_lease_again_after_what_was_read(self, exchange):
        asked = []

        exchange(
            lambda kube: patch(
                kube.with_fence(lambda: asked.append("Lease"))
                .with_fence(lambda: asked.append("object"))
                .with_fence(lambda: asked.append("Deployment"))
            ),
            json_reply(THING),
        )

        assert asked == ["Lease", "object", "Deployment", "Lease"]

    def test_that_closes_between_two_attempts_leaves_open_what_the_first_came_to(self, failure):
        # A write that nobody answered may have been carried out: it does not count as held back.
        error, requests, _ = failure(
            lambda kube: patch(kube.with_fence(fence_of([], last=1))), Reply(status=503)
        )

        assert len(requests) == 1
        assert (error.status, error.is_undone) == (503, False)
        assert "not tried again: the Lease was lost" in str(error)


def test_a_missing_kubeconfig_is_a_failure_of_the_world(tmp_path):
    with pytest.raises(KubernetesError, match="no cluster to talk to"):
        load_client(str(tmp_path / "none"))


def test_a_log_is_read_as_text_whatever_bytes_are_in_it(exchange):
    path = PODS.path("serving", "llama-0", "log")

    text, asked, _ = exchange(lambda kube: kube.text(path, tailLines="5"), Reply(body=b"a\xff\nb"))

    assert text == "a\N{REPLACEMENT CHARACTER}\nb"
    assert (asked[0].query, asked[0].headers["Accept"]) == ({"tailLines": "5"}, "*/*")
