"""``engine.queue: newestFirst``: what is rendered for it, and the module that runs in vLLM."""

import asyncio
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from types import ModuleType, SimpleNamespace

import kubernetes_validate
import pytest

from fleet_builders import (
    SITE,
    a_deployment_body,
    a_fleet,
    a_manifest,
    a_model,
    a_sizing,
    a_state,
)
from tonnage.api.objects import InvalidSpecError
from tonnage.catalog.engine import newest_version, parse_version
from tonnage.catalog.gpu import UnsupportedEngineError, built_in_gpus
from tonnage.control.input.memory import Memory
from tonnage.control.tick import tick
from tonnage.fleet.pods import trouble_of
from tonnage.manifests.children import deployment, recorded_queue, running_model, spec_digest
from tonnage.manifests.names import (
    CLASS_VARIABLE,
    MODULE_VARIABLE,
    SPEC_ANNOTATION,
    TEMPLATE_ANNOTATION,
)
from tonnage.sizing.expected import newest_first_s, queue_of
from tonnage.sizing.request import look_up
from tonnage.units import MIB
from tonnage_lab.emulator.arguments import parse

NOW_S = 1_800_000_001.0
FCFS = {"queue": "fcfs"}
MAJOR, MINOR = parse_version(newest_version())
AFTER_THE_NEWEST = f"{MAJOR}.{MINOR + 1}"
NEWEST_FIRST = {"version": "0.33", "queue": "newestFirst"}


def made_of(model):
    return deployment(model, a_sizing(), SITE)


def made(**engine):
    return made_of(a_model(engine={"version": "0.33", **engine}))


def template(**engine):
    return made(**engine)["spec"]["template"]


def container(**engine):
    [only] = template(**engine)["spec"]["containers"]
    return only


def test_the_pod_is_valid_to_the_letter():
    kubernetes_validate.validate(made(queue="newestFirst"), "1.33", strict=True)


class TestAuto:
    def test_is_newest_first_with_a_target_a_proven_version_and_engines_of_ours(self):
        assert template() == template(queue="newestFirst")
        assert made() == made(queue="newestFirst")

    @pytest.mark.parametrize(
        ("version", "admission", "slo"),
        [
            ("0.11", "all", {"timeToFirstToken": {"p95": "2s"}}),
            (AFTER_THE_NEWEST, "all", {"timeToFirstToken": {"p95": "2s"}}),
            ("0.33", "inTime", {"timeToFirstToken": {"p95": "2s"}}),
            ("0.33", "all", {"timePerOutputToken": {"p95": "50ms"}}),
        ],
    )
    def test_is_first_come_first_served_elsewhere_and_says_why(self, version, admission, slo):
        engine = {"version": version, "admission": admission}
        auto, fcfs = (a_model(engine=engine | queue, slo=slo) for queue in ({}, FCFS))

        queue = queue_of(auto.spec)
        assert queue.name == "fcfs"
        assert queue.why
        assert not queue_of(fcfs.spec).why
        assert made_of(auto) == made_of(fcfs)
        assert spec_digest(auto) == spec_digest(fcfs)

    def test_in_order_has_the_digest_of_before_there_were_queues(self):
        written = made(queue="fcfs")["metadata"]["annotations"][SPEC_ANNOTATION]

        assert json.loads(written)["engine"] == {"version": "0.33"}


def variables(**engine):
    return {each["name"]: each.get("value") for each in container(**engine)["env"]}


def test_the_module_is_where_no_pod_can_change_it():
    """An account that may patch pods can change their annotations, and no variable of theirs."""
    pod, plain = template(queue="newestFirst"), template()

    assert parse(["serve", *container(queue="newestFirst")["args"]]).is_newest_first
    assert "class NewestFirst" in variables(queue="newestFirst")[MODULE_VARIABLE]
    assert pod["metadata"] == plain["metadata"]
    assert pod["spec"]["volumes"] == plain["spec"]["volumes"]


def test_nothing_of_it_is_expanded_as_a_variable():
    found = container(queue="newestFirst")
    values = [each.get("value", "") for each in found["env"]]
    assert [text for text in (*found["command"], *values) if "$" in text] == []


VLLM = f"""#!{sys.executable}
import importlib, sys
middleware = sys.argv[sys.argv.index("--middleware") + 1]
module, name = middleware.rsplit(".", 1)
found = getattr(importlib.import_module(module), name)
print(sys.argv[1], found.__name__, found.__call__.__code__.co_filename)
"""


@pytest.fixture
def started(tmp_path):
    """Run the container's command with a vLLM that loads its middleware and ends."""
    programs, folder = tmp_path / "bin", tmp_path / "shm" / "tonnage"
    programs.mkdir()
    (programs / "vllm").write_text(VLLM)
    (programs / "vllm").chmod(0o755)
    here = {"PATH": f"{programs}:{Path(sys.executable).parent}", "PYTHONPATH": str(folder)}

    def run(found, **changes):
        given = {each["name"]: each["value"] for each in found["env"] if "value" in each}
        return subprocess.run(  # noqa: S603
            [*found["command"], *found["args"]], env=given | here | changes,
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


class TestTheStart:
    def test_makes_a_module_of_the_variable_that_vllm_imports(self, started, tmp_path):
        ended = started(container(queue="newestFirst"))

        file = tmp_path / "shm/tonnage/tonnage_queue.py"
        assert (ended.stdout, ended.stderr) == (f"serve NewestFirst {file}\n", "")

    def test_writes_over_what_an_earlier_start_or_another_left(self, started, tmp_path):
        (tmp_path / "shm/tonnage").mkdir(parents=True)
        (tmp_path / "shm/tonnage/tonnage_queue.py").write_text("raise SystemExit('swapped')")

        assert started(container(queue="newestFirst")).stdout.startswith("serve NewestFirst ")

    def test_reads_no_module_of_its_own_from_where_vllm_finds_one(self, started, tmp_path):
        for folder in (tmp_path, tmp_path / "shm/tonnage"):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "hashlib.py").write_text("raise SystemExit('swapped')")

        assert started(container(queue="newestFirst")).stdout.startswith("serve NewestFirst ")

    @pytest.mark.parametrize("module", ["class NewestFirst: 'swapped'", ""])
    def test_refuses_another_module_and_names_both_digests(self, started, tmp_path, module):
        found = container(queue="newestFirst")
        digest = found["command"][4]

        ended = started(found, **{MODULE_VARIABLE: module})

        [line] = ended.stderr.splitlines()
        assert line.startswith("vLLM is not started: the variable TONNAGE_QUEUE_MODULE has SHA-256")
        assert f"the container's command names {digest}. Undo what was changed" in line
        assert (ended.returncode, ended.stdout) == (1, "")
        assert not (tmp_path / "shm").exists()

    def test_that_is_refused_is_said_with_the_variable_and_the_cure(self, started):
        ended = started(container(queue="newestFirst"), **{MODULE_VARIABLE: "swapped"})
        end = {"reason": "Error", "exitCode": ended.returncode, "message": ended.stderr}
        status = {"containerStatuses": [{"name": "vllm", "state": {"terminated": end}}]}

        said = trouble_of(status, {}).message
        assert said.startswith("exit code 1: vLLM is not started: the variable TONNAGE_QUEUE_MOD")
        assert said.endswith("Undo what was changed in the pod template.")


def test_the_newest_go_first_from_nine_tenths_of_the_shortest_ttft_target():
    slo = {"timeToFirstToken": {"p50": "500ms", "p99": "4s"}}
    model = a_model(engine=NEWEST_FIRST, slo=slo)
    [only] = deployment(model, a_sizing(), SITE)["spec"]["template"]["spec"]["containers"]

    assert {"name": CLASS_VARIABLE, "value": "0.45"} in only["env"]


@pytest.mark.parametrize("slo", [None, {"timePerOutputToken": {"p95": "50ms"}}])
def test_without_a_ttft_target_it_is_refused_by_name(slo):
    with pytest.raises(InvalidSpecError, match=r"engine\.queue: newestFirst needs slo\.timeToFirs"):
        a_model(engine=NEWEST_FIRST, slo=slo)


@pytest.fixture
def module(monkeypatch, tmp_path):
    """The module as a pod has it, on a clock that does not move."""
    source = variables(queue="newestFirst")[MODULE_VARIABLE]
    monkeypatch.setenv(CLASS_VARIABLE, "2")
    found = ModuleType("tonnage_queue")
    found.__file__ = str(tmp_path / "tonnage_queue.py")
    exec(compile(source, "tonnage_queue.py", "exec"), found.__dict__)  # noqa: S102 -- our own
    found.clock = SimpleNamespace(now_s=NOW_S)
    found.time = SimpleNamespace(monotonic=lambda: found.clock.now_s)
    return found


def received(module, *chunks, path="/v1/chat/completions", kind="http"):
    """Return the body that the server behind the module reads."""
    messages = [
        {"type": "http.request", "body": chunk, "more_body": number < len(chunks) - 1}
        for number, chunk in enumerate(chunks)
    ]
    bodies = []

    async def receive():
        return messages.pop(0)

    async def server(_scope, receive, _send):
        bodies.extend([(await receive()).get("body") for _ in chunks])

    scope = {"type": kind, "path": path, "method": "POST", "headers": []}
    asyncio.run(module.NewestFirst(server)(scope, receive, None))
    return b"".join(bodies)


class TestTheModule:
    @pytest.mark.parametrize(
        "path", ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/invocations"]
    )
    def test_gives_a_request_the_number_of_its_class_below_zero(self, module, path):
        body = json.loads(received(module, b'{"model": "a", "n": 1}', path=path))

        assert body == {"model": "a", "n": 1, "priority": -1}

    def test_leaves_a_request_the_priority_that_it_has(self, module):
        assert json.loads(received(module, b'{"priority": 7}')) == {"priority": 7}

    @pytest.mark.parametrize("cut", [1, 2, 9])
    def test_marks_a_body_once_however_it_is_cut(self, module, cut):
        whole = b'{"prompt": "{}{"}'
        body = json.loads(received(module, whole[:cut], whole[cut:]))

        assert body == {"prompt": "{}{", "priority": -1}

    def test_marks_behind_empty_chunks_and_blanks(self, module):
        body = received(module, b"", b' \n{"n": 1}')

        assert json.loads(body)["priority"] == -1

    @pytest.mark.parametrize("body", [b"", b"{}", b"{ }", b"[1]", b"no JSON", b'"{"'])
    def test_leaves_what_is_no_request_to_the_server(self, module, body):
        assert received(module, body) == body

    @pytest.mark.parametrize(
        ("path", "kind"), [("/v1/messages", "http"), ("/v1/completions", "websocket")]
    )
    def test_leaves_other_bodies_alone(self, module, path, kind):
        assert received(module, b'{"n": 1}', path=path, kind=kind) == b'{"n": 1}'

    @pytest.mark.parametrize(("sent", "kept"), [([], b"-1"), ([(b"x-vllm-priority", b"7")], b"7")])
    def test_says_it_beside_a_body_that_has_no_place_for_it(self, module, sent, kept):
        seen = []

        async def server(scope, _receive, _send):
            seen.extend(scope["headers"])

        scope = {"type": "http", "path": "/v1/messages", "method": "POST", "headers": sent}
        asyncio.run(module.NewestFirst(server)(scope, None, None))
        assert seen == [(b"x-vllm-priority", kept)]
        assert len(scope["headers"]) == len(sent)  # the server's own is as it was

    def test_reads_behind_a_mark_of_the_byte_order(self, module):
        assert json.loads(received(module, b'\xef\xbb\xbf{"n": 1}'))["priority"] == -1

    def test_leaves_what_is_not_in_utf_8(self, module):
        body = '{"n": 1}'.encode("utf-16-le")

        assert received(module, body) == body

    def test_holds_no_body(self, module):
        """Of 64 chunks of 1 MiB some copies of one."""
        chunks = (b"{" + bytes(MIB) for _ in range(64))

        async def receive():
            return {"type": "http.request", "body": next(chunks), "more_body": True}

        async def server(_scope, receive, _send):
            for _ in range(64):
                await receive()

        scope = {"type": "http", "path": "/v1/completions", "headers": []}
        tracemalloc.start()
        asyncio.run(module.NewestFirst(server)(scope, receive, None))
        _, most_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        assert MIB < most_bytes < 6 * MIB

    def test_sends_the_end_of_a_connection_on(self, module):
        async def gone():
            return {"type": "http.disconnect"}

        assert asyncio.run(module.marked(gone, module.Place())()) == {"type": "http.disconnect"}

    @pytest.mark.parametrize("path", ["/health", "/metrics"])
    def test_leaves_what_asks_for_no_answer_alone(self, module, path):
        seen = []

        async def server(scope, _receive, _send):
            seen.append(scope)

        scope = {"type": "http", "path": path, "method": "GET", "headers": []}
        asyncio.run(module.NewestFirst(server)(scope, None, None))
        assert seen == [scope]
        assert module.LINE[module.NEWEST] == 0


SSE = [(b"Content-Type", b"text/event-stream; charset=utf-8")]
TOKEN, KEEP_ALIVE = b'data: {"choices": []}\n\n', b": keep-alive\n\n"


class TestWhenAClassBegins:
    """With a limit of 2 s, for requests that come and get their first tokens at given times."""

    @pytest.fixture
    def come(self, module):
        """Return what lets a request come, and then get chunks; each call returns its priority."""

        def ask(at_s, *chunks, headers=SSE, path="/v1/completions", served_s=0.0, body=b'{"n": 1}'):
            module.clock.now_s = NOW_S + at_s
            marked, sent = [], []

            async def receive():
                return {"type": "http.request", "body": body, "more_body": False}

            async def send(message):
                sent.append(message)

            async def server(_scope, receive, send):
                marked.append(json.loads((await receive())["body"])["priority"])
                module.clock.now_s = NOW_S + served_s
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                for chunk in chunks:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})

            scope = {"type": "http", "path": path, "method": "POST", "headers": []}
            asyncio.run(module.NewestFirst(server)(scope, receive, send))
            assert [each["body"] for each in sent[1:]] == list(chunks)
            return marked[0]

        return ask

    def test_all_are_of_one_while_streams_get_their_tokens_in_time(self, come):
        first = come(0.0, TOKEN)

        assert [come(at_s, TOKEN) for at_s in (1.5, 3.0, 4.5, 6.0)] == [first] * 4

    def test_a_new_one_goes_first_when_the_last_that_got_a_token_is_old(self, come):
        first = come(0.0, TOKEN)
        waiting = [come(at_s) for at_s in (1.0, 1.9)]
        newer = [come(at_s) for at_s in (2.1, 4.0)]

        assert waiting == [first] * 2
        assert newer == [newer[0]] * 2
        assert newer[0] < first

    def test_a_token_that_came_late_is_no_sign_of_time(self, come):
        """The first token comes at 5 s, of a request of 1 s: who came at 4 s waits since then."""
        first = come(0.0, TOKEN)
        late = come(1.0, TOKEN, served_s=5.0)

        assert late == first
        assert come(5.1) < first

    @pytest.mark.parametrize(
        ("chunk", "headers", "path"),
        [
            (KEEP_ALIVE, SSE, "/v1/completions"),
            (b"", SSE, "/v1/completions"),
            (b'data: {"error": {}}', SSE, "/v1/completions"),
            (TOKEN, SSE, "/v1/responses"),
        ],
        ids=["a sign of life", "nothing", "an error", "a path that begins otherwise"],
    )
    def test_what_is_no_first_token_lets_one_begin_by_the_clock(self, come, chunk, headers, path):
        first = come(0.0, chunk, headers=headers, path=path)
        again = come(1.5, chunk, headers=headers, path=path)

        assert again == first
        assert come(2.1) < first

    def test_an_answer_as_a_whole_has_had_its_first_token(self, come):
        whole = {"headers": [(b"content-type", b"application/json")], "path": "/v1/responses"}
        first = come(0.0, b"{}", **whole)

        assert [come(at_s, b"{}", **whole) for at_s in (1.5, 3.0, 4.5)] == [first] * 3

    def test_one_of_a_priority_of_its_own_says_nothing_of_those_in_line(self, come):
        first = come(0.0, TOKEN)
        come(1.9, TOKEN, body=b'{"priority": -9}')

        assert come(2.1) < first

    def test_all_servers_of_a_pod_see_one_line(self, come, module):
        first = come(0.0, TOKEN)
        other = module.shared_line(Path(module.__file__).with_suffix(".line"))

        assert list(other) == [-first, NOW_S]
        other[module.SERVED_S] = NOW_S + 3.0
        assert come(4.9) == first

    def test_what_is_left_of_an_older_one_says_nothing_of_the_newest(self, come, module):
        come(0.0, TOKEN)
        old = module.Place()
        old.take()
        module.clock.now_s = NOW_S + 2.5
        newer = come(2.5)
        old.came_s = NOW_S + 4.0  # as if it had come later
        old.serve()

        assert come(4.6) < newer


def test_a_release_whose_priorities_spoil_answers_is_refused():
    model = a_model(engine={**NEWEST_FIRST, "version": "0.11"})

    with pytest.raises(
        UnsupportedEngineError, match=r"engine\.queue: newestFirst needs engine\.ver"
    ):
        look_up(model.spec, built_in_gpus())
    assert look_up(a_model(engine={**NEWEST_FIRST, "version": "0.12"}).spec, built_in_gpus())


class TestWhatRuns:
    """A fleet made with one SLO and queue, while its spec asks for others."""

    def ran(self, **today):
        before = a_model(engine=NEWEST_FIRST, slo={"timeToFirstToken": {"p95": "2s"}})
        text = made_of(before)["metadata"]["annotations"][SPEC_ANNOTATION]
        return running_model(a_model(**today), text)

    def test_is_judged_by_the_slo_of_today(self):
        slo = {"timeToFirstToken": {"p95": "5s"}, "attainment": {"window": "168h"}}

        found = self.ran(engine=NEWEST_FIRST, slo=slo)

        assert found.spec.slo.to_dict() == slo
        assert found.spec.engine.queue == "newestFirst"

    def test_is_known_where_the_spec_drops_the_target_with_the_queue(self):
        found = self.ran(engine={"version": "0.33"}, slo={"timePerOutputToken": {"p95": "50ms"}})

        assert newest_first_s(found.spec) == 1.8

    def test_has_the_slo_of_today_where_it_is_first_come_first_served(self):
        engine = {"version": "0.33"} | FCFS
        before = made_of(a_model(engine=engine, slo={"timeToFirstToken": {"p95": "2s"}}))
        today = a_model(engine=NEWEST_FIRST, slo={"timeToFirstToken": {"p95": "5s"}})
        found = running_model(today, before["metadata"]["annotations"][SPEC_ANNOTATION])

        assert found.spec.slo == today.spec.slo
        assert newest_first_s(found.spec) == 0


def as_before(body):
    """As the module was in an annotation of the pod, of which a volume made a file."""
    pod = body["spec"]["template"]
    [engine] = pod["spec"]["containers"]
    engine["command"] = ["vllm", "serve"]
    engine["env"] = [each for each in engine["env"] if each["name"] != MODULE_VARIABLE]
    [path] = [each for each in engine["env"] if each["name"] == "PYTHONPATH"]
    path["value"] = "/etc/tonnage"
    engine["volumeMounts"].append({"name": "queue", "mountPath": "/etc/tonnage", "readOnly": True})
    field = {"apiVersion": "v1", "fieldPath": "metadata.annotations['tonnage.dev/queue-module']"}
    items = [{"path": "tonnage_queue.py", "fieldRef": field}]
    pod["spec"]["volumes"].append({"name": "queue", "downwardAPI": {"items": items}})
    pod["metadata"]["annotations"] = {"tonnage.dev/queue-module": "class NewestFirst: ..."}
    body["metadata"]["annotations"][TEMPLATE_ANNOTATION] = "0123456789abcdef"
    return body


def test_another_module_in_the_template_is_called_an_edit_and_undone():
    live = a_deployment_body(a_model(engine=NEWEST_FIRST))
    [engine] = live["spec"]["template"]["spec"]["containers"]
    [module] = [each for each in engine["env"] if each["name"] == MODULE_VARIABLE]
    ours, module["value"] = module["value"], "class NewestFirst: 'swapped'"

    outcome = tick(a_fleet(a_state(a_manifest(engine=NEWEST_FIRST), live=live)), Memory())

    drifted = outcome.memory.objects["uid-of-llama"].reported.conditions["Drifted"]
    assert (drifted.status, drifted.reason) == ("True", "TemplateEdited")
    assert "containers[vllm].env[TONNAGE_QUEUE_MODULE].value" in drifted.message
    [writes] = outcome.writes
    [engine] = writes.template["spec"]["template"]["spec"]["containers"]
    assert {"name": MODULE_VARIABLE, "value": ours} in engine["env"]


class TestPodsThatRunInOrder:
    """Made before there was a default but first come first served."""

    LIVE = a_deployment_body(a_model(engine={"version": "0.33"} | FCFS))

    def outcome(self, memory=None, live=None, **changes):
        state = a_state(a_manifest(**changes), live=live or self.LIVE)
        return tick(a_fleet(state), memory or Memory())

    @staticmethod
    def templates(outcome):
        return [each.template for each in outcome.writes if each.template]

    def test_go_on_so_under_auto_and_the_status_says_it(self):
        outcome = self.outcome()

        [found] = outcome.found
        assert self.templates(outcome) == []
        assert found.chosen.model.spec.engine.queue == "fcfs"
        assert found.chosen.sizing.request.newest_first_s == 0
        [note] = [each for each in found.decision.notes if each.code == "Queue"]
        assert note.message == (
            "engine.queue auto is fcfs as the pods run; the next change that replaces them brings "
            "newestFirst"
        )

    def test_go_on_so_where_a_change_of_the_spec_replaces_no_pod(self):
        targets = {"timeToFirstToken": {"p95": "2.001s"}, "timePerOutputToken": {"p95": "50ms"}}

        [template] = self.templates(self.outcome(slo=targets, generation=2))

        [engine] = template["spec"]["template"]["spec"]["containers"]
        assert engine["command"] == ["vllm", "serve"]

    def test_are_newest_first_with_the_next_change_that_replaces_them(self):
        [template] = self.templates(self.outcome(contextLength=16_384, generation=2))

        [engine] = template["spec"]["template"]["spec"]["containers"]
        assert "--middleware" in engine["args"]
        assert recorded_queue(template["metadata"]["annotations"][SPEC_ANNOTATION]) == "newestFirst"

    def test_stay_newest_first_when_that_is_what_runs(self):
        live = a_deployment_body(a_model())

        outcome = self.outcome(live=live)

        [found] = outcome.found
        assert self.templates(outcome) == []
        assert found.chosen.sizing.request.newest_first_s == 1.8
        [note] = [each for each in found.decision.notes if each.code == "Queue"]
        assert note.message.startswith("engine.queue auto is newestFirst: ")

    def test_are_replaced_where_the_spec_names_the_other_queue(self):
        [template] = self.templates(self.outcome(engine=NEWEST_FIRST, generation=2))

        [engine] = template["spec"]["template"]["spec"]["containers"]
        assert "--middleware" in engine["args"]

    @pytest.mark.parametrize(
        ("target", "class_s"),
        [("3.9s", "1.8"), ("1.9s", "1.8"), ("1.7s", "1.53"), ("5s", "4.5")],
    )
    def test_a_class_stays_between_half_of_what_the_target_asks_and_the_target(
        self, target, class_s
    ):
        slo = {"timeToFirstToken": {"p95": target}, "timePerOutputToken": {"p95": "50ms"}}
        live = a_deployment_body(a_model())

        [template] = self.templates(self.outcome(live=live, slo=slo, generation=2))

        [engine] = template["spec"]["template"]["spec"]["containers"]
        assert {"name": CLASS_VARIABLE, "value": class_s} in engine["env"]


class TestAPodThatRunsWithTheModuleInAnAnnotation:
    def outcome(self, **changes):
        live = as_before(a_deployment_body(a_model(engine=NEWEST_FIRST)))
        state = a_state(a_manifest(engine=NEWEST_FIRST, **changes), live=live)
        return tick(a_fleet(state), Memory())

    def test_stays_and_is_not_called_edited(self):
        outcome = self.outcome()

        drifted = outcome.memory.objects["uid-of-llama"].reported.conditions["Drifted"]
        assert (drifted.status, drifted.reason) == ("Unknown", "UnknownBaseline")
        assert [each.template for each in outcome.writes if each.template] == []

    def test_has_it_in_a_variable_with_the_next_change_of_the_template(self):
        [writes] = self.outcome(contextLength=16_384, generation=2).writes

        [engine] = writes.template["spec"]["template"]["spec"]["containers"]
        assert MODULE_VARIABLE in {each["name"] for each in engine["env"]}
        assert engine["command"][-2:] == ["vllm", "serve"]
