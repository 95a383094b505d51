"""What the last lines of vLLM say of a start that failed, and what a condition makes of it."""

from dataclasses import replace

import pytest

from fleet_builders import (
    a_deployment_body,
    a_fleet,
    a_manifest,
    a_pod_body,
    a_sizing,
    a_state,
    assessed,
    recorded_by,
)
from tonnage.control.observe.starting import SILENT, held_up, read_crash
from tonnage.control.report.rules import capacity_available
from tonnage.fleet.pods import pod_view
from tonnage.manifests.children import flags_from_annotation
from tonnage.manifests.names import FLAGS_ANNOTATION

TARGET = {"engine": None, "scaleTarget": {"name": "my-vllm"}}
STATES = (
    "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (614). Each decode "
    "sequence requires one Mamba cache block, so CUDA graph capture cannot proceed. Please lower "
    "max_num_seqs to at most 614 or increase gpu_memory_utilization."
)
LENGTH = (
    "ValueError: To serve at least one request with the model's max seq len (131072), (16.0 GiB KV "
    "cache is needed, which is larger than the available KV cache memory (12.86 GiB). Based on the "
    "available memory, the estimated maximum model length is 105344. Try increasing "
    "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
)
LENGTH_OF_0_10 = (
    "ValueError: The model's max seq len (8192) is larger than the maximum number of tokens that "
    "can be stored in KV cache (4032). Try increasing `gpu_memory_utilization` or decreasing "
    "`max_model_len` when initializing the engine."
)
FREE = (
    "ValueError: Free memory on device cuda:0 (20.10/23.52 GiB) on startup is less than desired "
    "GPU memory utilization (0.92, 21.64 GiB). Decrease GPU memory utilization or reduce GPU "
    "memory used by other processes."
)
MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 136.00 MiB. GPU 0 has a total "
    "capacity of 22.36 GiB of which 120.88 MiB is free."
)
SAMPLER = (
    "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. "
    "Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
)
ENGINE = (
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)


@pytest.mark.parametrize(
    ("line", "of_target", "of_ours"),
    [
        (STATES, "set --max-num-seqs to at most 614", '"--enforce-eager" to engine.args'),
        (LENGTH, "set --max-model-len to at most 105344", "set contextLength to at most 105344"),
        (
            LENGTH_OF_0_10,
            "set --max-model-len to at most 4032",
            "set contextLength to at most 4032",
        ),
        (LENGTH.partition("Based")[0], "lower --max-model-len", "lower contextLength"),
        (
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory`",
            "raise --gpu-memory-utilization",
            "raise hardware.gpusPerReplica",
        ),
        (FREE, "set --gpu-memory-utilization to at most 0.85", "0.85 of its memory is free"),
        (MEMORY, "lower --gpu-memory-utilization by 0.02", '"--enforce-eager" to engine.args'),
        (SAMPLER, "lower --max-num-seqs", "raise hardware.gpusPerReplica"),
        (ENGINE, "further up in its log", "further up in its log"),
    ],
)
def test_each_of_vllms_texts_has_a_field_to_change(line, of_target, of_ours):
    found = read_crash(f"INFO loading\n{line}\n")

    assert found.line == line
    assert of_target in found.cures[0]
    assert of_ours in found.cures[1]


def test_the_cause_goes_before_what_the_server_says_of_it():
    worker = (
        f"RuntimeError: Worker failed with error '{STATES}', please check the stack trace above"
    )

    assert read_crash(f"{worker}\n  File core.py\n{ENGINE}").line == worker


def test_weights_that_do_not_fit_are_no_matter_of_graphs():
    trace = '  File "gpu_model_runner.py", line 4711, in load_model'

    assert "raise --tensor-parallel-size" in read_crash(f"{trace}\n{MEMORY}").cures[0]


@pytest.mark.parametrize(
    "message",
    ["", "KeyError: 'x'", "max_num_seqs (9999999999) exceeds available Mamba cache blocks (1)",
     "Free memory on device (1/0 GiB) on", "\x00" * 100_000],
)  # fmt: skip
def test_what_is_none_of_vllms_texts_says_nothing(message):
    assert read_crash(message) is None


def test_a_board_without_memory_does_no_harm():
    text = FREE.replace("20.10/23.52", "0/0")

    assert "at most 0" in read_crash(text).cures[0]


def a_crash(message, *, reason="Error", **container):
    ended = {"reason": reason, "exitCode": 1, "message": message}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
    status = {"name": "vllm", "state": waiting, "lastState": {"terminated": ended}}
    body = a_pod_body("a", ready_for_s=None, containerStatuses=[status])
    return body | {"spec": {"containers": [{"name": "vllm"} | container]}}


def told(body, **manifest):
    live = a_deployment_body()
    return held_up(a_state(a_manifest(**manifest), live=live, pods=[body], engines=())).message


def test_a_condition_names_the_flag_of_a_target_and_the_field_of_a_spec():
    said = told(a_crash(f"{STATES}\n{ENGINE}"), **TARGET)

    assert said.startswith(
        "pod a does not start: CrashLoopBackOff: exit code 1: ValueError: max_num_seqs (1024) "
        "exceeds available Mamba cache blocks (614). Each decode sequence requires one Mamba cache "
    )
    assert said.endswith("; set --max-num-seqs to at most 614")
    assert told(a_crash(LENGTH)).endswith(
        "; set contextLength to at most 105344, or raise hardware.gpusPerReplica"
    )


@pytest.mark.parametrize(
    ("policy", "reason", "is_asked"),
    [
        ({}, "Error", True),
        ({"terminationMessagePolicy": "File"}, "Error", True),
        ({"terminationMessagePolicy": "FallbackToLogsOnError"}, "Error", False),
        ({}, "OOMKilled", False),
    ],
)
def test_a_target_that_ended_without_a_word_is_asked_to_let_its_log_be_read(
    policy, reason, is_asked
):
    body = a_crash("", reason=reason, **policy)

    assert ("terminationMessagePolicy: FallbackToLogsOnError" in told(body, **TARGET)) is is_asked
    assert (pod_view(body).crash == SILENT) is is_asked


def test_what_a_tenant_writes_changes_no_more_than_a_figure():
    body = a_crash(STATES.replace("(614)", "(999999999)") + "\nset hardware.gpu: cheap\x1b[0m\n")

    assert told(body, **TARGET).endswith("; set --max-num-seqs to at most 999999999")


def test_where_the_cause_is_further_up_the_plan_says_what_it_doubts():
    live = a_deployment_body(annotations={}, ownerReferences=[], name="my-vllm")
    [container] = live["spec"]["template"]["spec"]["containers"]
    container |= {
        "args": ["--max-num-seqs=650", "--max-num-batched-tokens=8192"],
        "image": "vllm/vllm-openai:v0.25.1",
    }
    hybrid = {"model": {"id": "Qwen/Qwen3.6-27B"}, "hardware": {"gpu": "H100-NVL"}}
    manifest = a_manifest(**TARGET | hybrid)
    state = a_state(manifest, live=live, pods=[a_crash(ENGINE)], engines=())
    found = capacity_available(assessed(state), a_fleet(state))

    assert "see kubectl logs --previous; by the plan: --max-num-seqs 650 may exceed the 6" in (
        found.message
    )


SLOTS = STATES.replace("(614)", "(20)")
CACHE = LENGTH.replace("105344", "7000")
OTHERS = FREE.replace("20.10/", "20.70/")


def engines_of(live):
    [container] = live["spec"]["template"]["spec"]["containers"]
    return container["args"]


def crashing(*messages, mode, flags=None, args=None, pods=()):
    """Ours of one replica, whose pods ended so, and what is done about it."""
    manifest = a_manifest(scaling={"mode": mode, "maxReplicas": 8})
    sizing = a_sizing()
    sizing = replace(sizing, flags=replace(sizing.flags, **(flags or {})))
    live = a_deployment_body(sizing=sizing, replicas=1, ready=0)
    args = engines_of(live) if args is None else args
    bodies = [a_crash(each, args=args) for each in messages]
    state = a_state(manifest, live=live, pods=[*bodies, *pods], engines=())
    return assessed(state)


def flags_in(template):
    return flags_from_annotation(template["metadata"]["annotations"][FLAGS_ANNOTATION])


@pytest.mark.parametrize(
    ("message", "flags", "argument"),
    [
        (SLOTS, {"max_num_seqs": 20}, "20"),
        (SAMPLER, {"max_num_seqs": a_sizing().flags.max_num_seqs // 2}, None),
        (MEMORY, {"gpu_memory_utilization": 0.9}, "0.9"),
    ],
    ids=["states", "sampler", "capture"],
)
@pytest.mark.parametrize("mode", ["Auto", "Approve"])
def test_what_costs_only_load_is_lowered_at_once_or_proposed(message, flags, argument, mode):
    found = crashing(f"{message}\n{ENGINE}", mode=mode)

    if mode == "Approve":
        [proposal] = found.proposals
        assert found.template is None
        assert proposal.reason == "RolloutNeedsApproval"
        assert " -> " in proposal.message
        agreed = replace(found.state, view=replace(found.state.view, approve=proposal.digest))
        found = assessed(agreed)
    assert not found.proposals
    assert flags_in(found.template) == replace(a_sizing().flags, is_cured=True, **flags)
    assert argument is None or argument in engines_of(found.template)
    assert found.memory.posterior.slots_moved_at_s is None  # others need not wait for it


@pytest.mark.parametrize(
    ("message", "change"),
    [
        (CACHE, "--max-model-len 8192 -> 7000"),
        (OTHERS, "--gpu-memory-utilization 0.92 -> 0.88"),
    ],
    ids=["asked by the spec", "of another process"],
)
def test_what_somebody_asked_for_or_may_give_back_is_proposed_only(message, change):
    assert crashing(message, mode="Auto").template is None

    [proposal] = crashing(message, mode="Approve").proposals

    assert change in proposal.message


def test_a_shorter_request_stays_until_the_spec_changes():
    proposal = crashing(CACHE, mode="Approve").proposals[0]
    waits = crashing(CACHE, mode="Approve").state
    agreed = assessed(replace(waits, view=replace(waits.view, approve=proposal.digest)))
    live = agreed.template | {"status": {}}
    live["metadata"] |= {"uid": "uid-of-deployment-llama", "generation": 4}
    live["metadata"]["managedFields"] = recorded_by()
    runs = assessed(a_state(a_manifest(), live=live, pods=[], engines=()))

    assert flags_in(agreed.template).context_tokens == 7000
    assert runs.sizing.flags == flags_in(agreed.template)
    assert runs.sizing.request.context_tokens == 7000
    assert runs.template is None

    other = assessed(a_state(a_manifest(contextLength=7500), live=live, pods=[], engines=()))

    assert other.sizing.request.context_tokens == 7500
    assert "7500" in engines_of(other.template)


@pytest.mark.parametrize(
    "case",
    [
        {"args": ["--max-num-seqs", "999"]},
        {"pods": [a_pod_body("b")]},
        {"flags": {"max_num_seqs": 20}},
        {"mode": "Recommend"},
    ],
    ids=["of another template", "others start", "no more than that", "writes nothing"],
)
def test_what_is_no_fault_of_the_flags_that_run_lowers_none(case):
    assert crashing(SLOTS, **{"mode": "Auto"} | case).template is None


def test_pods_that_end_the_same_way_lower_it_once_and_no_further_than_is_plausible():
    flags = flags_in(crashing(MEMORY, MEMORY, mode="Auto").template)

    assert flags.gpu_memory_utilization == 0.9
    assert crashing(MEMORY, mode="Auto", flags={"gpu_memory_utilization": 0.81}).template is None
