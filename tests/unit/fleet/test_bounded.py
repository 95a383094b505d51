"""What Kopf sees of the API server: no object that is too large, and of others what is read."""

import asyncio
import json

import aiohttp
import pytest

from fleet_builders import a_manifest
from http_double import Reply, json_reply, serving
from tonnage.cluster.kube import MODEL_DEPLOYMENTS
from tonnage.cluster.pages import MOST_OBJECT_BYTES, reduce_event
from tonnage.fleet.bounded import bounded_responses, slim_model
from tonnage.fleet.views import model_view

PATH = MODEL_DEPLOYMENTS.path(None)
ANNOTATIONS = {"tonnage.dev/approve": "0123", "note": "x" * 1000}
OWNERS = [{"apiVersion": "v1", "kind": "A", "name": "a", "uid": "u-1", "controller": True}]


def a_body(**metadata):
    body = a_manifest("llama") | {"status": {"plan": {"replicas": 2}}}
    body["metadata"] |= {"resourceVersion": "7"} | metadata
    return body


def packed(value):
    return json.dumps(value, separators=(",", ":")).encode()


def asked(reply, path=PATH):
    """What a session of ours reads as JSON."""

    async def ask(url):
        session = aiohttp.ClientSession(response_class=bounded_responses())
        async with session, session.get(url + path) as answer:
            return await answer.json()

    with serving(lambda _: reply) as server:
        return asyncio.run(ask(server.url))


@pytest.mark.parametrize(
    "spec", [{}, {"operatorClass": "blue"}, {"topology": {"kvLink": "50GB/s"}}]
)
def test_a_slim_model_is_to_the_store_what_the_whole_one_is(spec):
    body = a_body(annotations=ANNOTATIONS, ownerReferences=OWNERS, labels={"a": "b"})
    body["spec"] |= spec

    assert model_view(json.loads(slim_model(packed(body)))) == model_view(body)


def test_what_is_below_the_limit_by_what_nobody_reads_is_small():
    fields = {f"f:{each:05}": {} for each in range(17_000)}
    managed = [{"manager": "tenant", "operation": "Apply", "fieldsV1": fields}]
    text = packed(a_body(managedFields=managed, finalizers=["a/b"] * 1000))

    assert 0.8 * MOST_OBJECT_BYTES < len(text) <= MOST_OBJECT_BYTES
    assert len(slim_model(text)) < len(packed(a_body())) + 100


@pytest.mark.parametrize(
    "line",
    [
        {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}},
        {"type": "ERROR", "object": {"kind": "Status", "code": 410}},
    ],
    ids=lambda each: each["type"],
)
def test_what_is_no_model_in_a_watch_stays_as_it_is(line):
    assert json.loads(reduce_event(packed(line), slim_model)) == line


class TestAList:
    def test_has_its_head_and_slim_objects(self):
        told = {"kind": "ModelDeploymentList", "apiVersion": "a/b", "metadata": {"continue": "c"}}
        found = asked(json_reply(told | {"items": [a_body(labels={"a": "b"})]}))

        assert {key: found[key] for key in told} == told
        [item] = found["items"]
        assert "labels" not in item["metadata"]
        assert item["spec"] == a_body()["spec"]

    def test_loses_one_that_cannot_be_read_alone_and_says_so(self, caplog):
        bad = a_body() | {"metadata": {"name": None}}
        found = asked(json_reply({"metadata": {}, "items": [a_body(), bad, a_body(name="b")]}))

        assert [each["metadata"]["name"] for each in found["items"]] == ["llama", "b"]
        [record] = caplog.records
        assert "an object cannot be read" in str(record.msg)

    def test_has_one_that_nests_too_deep_beside_the_others(self):
        deep = packed(a_body() | {"spec": "@"}).replace(
            b'"@"', b'{"a":' * 9000 + b"1" + b"}" * 9000
        )
        page = b'{"metadata": {}, "items": [' + deep + b", " + packed(a_body(name="b")) + b"]}"
        found = asked(Reply(body=page, headers={"Content-Type": "application/json"}))

        assert [each["metadata"]["name"] for each in found["items"]] == ["llama", "b"]

    @pytest.mark.parametrize(
        ("status", "path", "body"),
        [
            (200, "/apis/tonnage.dev/v1alpha1", {"resources": ["a" * MOST_OBJECT_BYTES]}),
            (404, PATH, {"kind": "Status", "code": 404}),
        ],
    )
    def test_of_another_kind_and_a_refusal_are_as_they_were(self, status, path, body):
        headers = {"Content-Type": "application/json"}

        assert asked(Reply(status=status, body=packed(body), headers=headers), path=path) == body


def test_lists_of_many_namespaces_are_read_one_at_a_time():
    under_way, most = set(), []
    response = bounded_responses()
    read = response.read

    async def counted(self):
        under_way.add(id(self))
        most.append(len(under_way))
        await asyncio.sleep(0)
        data = await read(self)
        under_way.discard(id(self))
        return data

    response.read = counted

    async def ask(url):
        async with aiohttp.ClientSession(response_class=response) as session:

            async def one():
                async with session.get(url + PATH) as answer:
                    await answer.json()

            await asyncio.gather(*(one() for _ in range(5)))

    with serving(lambda _: json_reply({"metadata": {}, "items": [a_body()]})) as server:
        asyncio.run(ask(server.url))

    assert most == [1] * 5
