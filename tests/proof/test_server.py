"""The queue's module against the servers of all releases that take it, as their sources are."""

import asyncio
import importlib
import inspect
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tonnage.manifests.names import CLASS_VARIABLE, MIDDLEWARE, QUEUE_MODULE

ROOT = Path(__file__).parents[2]
SERVERS = json.loads((Path(__file__).parent / "servers.json").read_text())
TABLE = json.loads((Path(__file__).parent / "table.json").read_text())
LOOP, LESS = SERVERS["how --middleware is read"], SERVERS["who goes first"]
ROUTES, HEADER = SERVERS["priority in the body"], SERVERS["header of a priority"]
OF_ALL = " ".join(each for each in TABLE["versions"] if each != "0.11.0")


@pytest.fixture
def module(monkeypatch, tmp_path):
    monkeypatch.setenv(CLASS_VARIABLE, "2")
    source = ROOT / "operator/tonnage/manifests/in_pod" / f"{QUEUE_MODULE}.py"
    (tmp_path / source.name).write_text(source.read_text())
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module(QUEUE_MODULE)
    del sys.modules[QUEUE_MODULE]


def test_each_release_was_read():
    assert OF_ALL.split()[0] == "0.12.0"
    assert [*LOOP.values(), *LESS.values()] == [OF_ALL, OF_ALL]  # one text in all of them


def test_the_servers_own_words_add_the_module(module):
    added = []
    app = SimpleNamespace(add_middleware=added.append)
    here = {"importlib": importlib, "inspect": inspect, "app": app}

    for text in LOOP:
        exec(text, here | {"args": SimpleNamespace(middleware=[MIDDLEWARE])})  # noqa: S102

    assert added == [module.NewestFirst]


@pytest.mark.parametrize(
    ("came_at_s", "first"),
    [([0.5, 1.5], 0.5), ([0.5, 2.5], 2.5), ([0.5, 1.5, 2.5, 3.5], 2.5)],
)
def test_the_engines_own_words_take_the_newest_class_in_order(
    module, monkeypatch, came_at_s, first
):
    requests = []
    for at_s in came_at_s:
        monkeypatch.setattr(module.time, "monotonic", lambda at_s=at_s: at_s)
        requests.append(SimpleNamespace(priority=module.Place().take(), arrival_time=at_s))
    for text in LESS:
        body = "\n".join(f"    {line}" for line in text.splitlines())
        names = {}
        exec(f"def is_first(self, other):\n{body}", names)  # noqa: S102

        [found] = [
            each
            for each in requests
            if all(names["is_first"](each, other) for other in requests if other is not each)
        ]

        assert found.arrival_time == first


@pytest.mark.parametrize("path", ROUTES)
def test_where_a_body_has_a_place_for_a_priority_the_module_writes_it(module, path):
    bodies = []

    async def receive():
        return {"type": "http.request", "body": b'{"model": "a"}', "more_body": False}

    async def server(_scope, receive, _send):
        bodies.append((await receive())["body"])

    scope = {"type": "http", "path": path, "headers": []}
    asyncio.run(module.NewestFirst(server)(scope, receive, None))

    assert json.loads(bodies[0])["priority"] < 0


def test_the_streams_that_the_module_watches_begin_with_an_output():
    streams = SERVERS["streams that begin with an output"]

    assert streams["chat_completion_stream_generator"] == OF_ALL
    assert streams["completion_stream_generator"] == OF_ALL
    assert streams["chat_completion_stream_generator_raw"] == OF_ALL[OF_ALL.index("0.33.0") :]


def test_elsewhere_the_module_says_it_in_the_header_that_is_read(module):
    [(name, since)] = HEADER.items()

    assert module.HEADER.decode() == name.lower()
    assert since == OF_ALL[OF_ALL.index("0.28.0") :]
