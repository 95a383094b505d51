"""What people type, class by class: answers against golden output, mistakes by message and code."""

from pathlib import Path

import pytest

from cli_builders import (
    CONFIGURED,
    LLAMA,
    SCALED,
    a_config_map,
    a_deployment,
    llama,
    run,
)
from thorough import one_in

GOLDEN = Path(__file__).parents[2] / "golden" / "cli-invocations.txt"
MARK = "$ tonnage "

MODEL = "--model meta-llama/Llama-3.1-8B-Instruct"
H100 = f"{MODEL} --gpu H100"
LOAD = "--rps 4 --prompt 4000 --output 500"
SLO = "--ttft 2s --tpot 50ms"
LINE = f"{H100} {LOAD} {SLO}"
SMALL = f"{H100} --rps 1 --prompt 500 --output 100 {SLO}"
QWEN = "--gpu H100 --rps 2 --prompt 1000 --output 300"

REALISTIC = [
    # a first answer without a file
    f"plan {LINE}",
    f"plan {H100} {LOAD}",
    f"plan {MODEL} --gpu L4 --rps 0.5 --prompt 500 --output 100 --ttft 1s",
    f"plan {MODEL} --gpu l40s --rps 1 --prompt 500 --output 100 --tpot 80ms",
    f"plan {MODEL} --gpu NVIDIA-H100-80GB-HBM3 --rps 1 --prompt 500 --output 100 {SLO}",
    f"plan {H100} --rps 1",
    # models: dense, experts, hybrid, latent attention, windows, narrow weights
    f"plan --model Qwen/Qwen3-30B-A3B {QWEN} {SLO}",
    f"plan --model Qwen/Qwen3.5-9B {QWEN} {SLO}",
    f"plan --model google/gemma-3-12b-it {QWEN} {SLO}",
    f"plan --model openai/gpt-oss-20b {QWEN} {SLO}",
    f"plan --model microsoft/phi-4 {QWEN} {SLO}",
    "plan --model deepseek-ai/DeepSeek-V3 --gpu H200 --prompt 1000 --output 300",
    # any field of the spec
    f"plan {SMALL} --set model.weights=fp8",
    f"plan {SMALL} --set model.kvCache=fp8",
    f"plan {SMALL} --set contextLength=32768",
    f"plan {SMALL} --set hardware.gpusPerReplica=2",
    f"plan {SMALL} --set engine.version=0.20",
    f"plan {SMALL} --set engine.maxNumBatchedTokens=2048",
    f"plan {SMALL} --set model.adapters={{number: 8, rank: 32}}",
    f"plan {SMALL} --set engine.speculative={{method: ngram, tokens: 2, acceptedPercent: 60}}",
    f"plan {SMALL} --set engine.args=[--enforce-eager]",
    f"plan {SMALL} --set slo.timeToFirstToken={{p99: 3s}}",
    f"plan {SMALL} --set scaling.minReplicas=3",
    f"plan {SMALL} --set scaling.routing=LeastOutstanding",
    f"plan {SMALL} --set demand.cachedPromptPercent=50",
    f"plan {SMALL} --set demand.arrivalScv=4",
    # demand in other words
    f"plan {H100} {SLO} --set demand.tokensPerDay=50000000",
    f"plan {H100} {SLO} --set demand.tokensPerSecond=200",
    f"plan {H100} {SLO} --set demand.concurrentUsers=40 --set demand.dutyCyclePercent=50",
    # prices
    f"plan {SMALL} --price H100=2.10",
    f"plan {SMALL} --price H100=2.10 --currency EUR",
    # classes against each other
    f"compare {MODEL} {LOAD} {SLO} --gpu H100,L40S,A100-80GB",
    f"compare {MODEL} {LOAD} --gpu L4,T4",
    f"compare {MODEL} {LOAD} {SLO} --gpu H100,H200 --price H100=2 --price H200=3",
]
FROM_FILES = {
    "plan -f -": LLAMA,
    "plan -f - --rps 12": LLAMA,
    "plan -f - --gpu H100": LLAMA,
    "plan -f - --set scaling.maxReplicas=2": LLAMA,
    "plan -f - (offline)": llama(
        ("  slo:\n    timeToFirstToken: {p95: 2s}\n    timePerOutputToken: {p95: 50ms}\n", "")
    ),
    "plan -f - (with a ConfigMap)": f"{CONFIGURED}---\n{a_config_map()}",
    "plan -f - (with a scale target)": f"{SCALED}---\n{a_deployment()}",
    "plan -f - (two)": f"{LLAMA}---\n{LLAMA.replace('llama-70b', 'other')}",
    "compare -f - --gpu H100,H200": LLAMA,
}
IN_TEXT = [
    f"init {LINE}",
    "catalog models --match qwen3-next",
    "catalog gpus -o csv",
    "explain --glossary",
    "crd",
]
HEAD = 12
"""Lines of a text that the golden file keeps."""


def words(line):
    """Split what is typed; a value of --set may have spaces within braces."""
    found = []
    for word in line.partition(" (")[0].split(" "):
        if found and found[-1].count("{") > found[-1].count("}"):
            found[-1] += f" {word}"
        else:
            found.append(word)
    return found


def read_golden():
    sections = GOLDEN.read_text().split(MARK)[1:] if GOLDEN.exists() else []
    return dict(section.split("\n", 1) for section in sections)


@pytest.fixture
def golden(request):
    """Compare what a line gives with its section of the golden file."""

    def check(line, said):
        known = read_golden()
        if request.config.getoption("--update-golden"):
            known[line] = said
            GOLDEN.write_text("".join(f"{MARK}{name}\n{text}" for name, text in known.items()))
        assert said == known.get(line)

    return check


def as_rows(line, text=None):
    result = run(*words(line), "-o", "csv", text=text)
    return f"{result.exit_code}\n{result.stdout}"


@pytest.mark.parametrize("line", one_in(2, REALISTIC))
def test_a_line_of_options_has_the_row_that_it_had(golden, line):
    golden(line, as_rows(line))


@pytest.mark.parametrize("line", FROM_FILES)
def test_a_manifest_has_the_rows_that_it_had(golden, line):
    golden(line, as_rows(line, FROM_FILES[line]))


@pytest.mark.parametrize("line", IN_TEXT)
def test_a_text_begins_as_it_did(golden, line):
    result = run(*words(line))
    head = "".join(f"{each}\n" for each in result.stdout.splitlines()[:HEAD])

    golden(line, f"{result.exit_code}\n{head}")


def test_the_golden_file_has_nothing_that_nobody_types():
    assert set(read_golden()) == {*REALISTIC, *FROM_FILES, *IN_TEXT}


def deployed(*change):
    return llama(change)


MISTYPED = [
    ("plna", None, "No such command 'plna'"),
    ("plan --rsp 4", None, "No such option '--rsp'"),
    ("plan", None, "nothing is asked: give manifests with -f, or a model with --model"),
    ("compare", None, "nothing is asked"),
    ("diff a.yaml", None, "give OLD and NEW"),
    (f"init {MODEL}", None, "plan needs a GPU class: --gpu H100"),
    ("init -f -", LLAMA, "init makes a manifest of options: it takes no -f"),
    ("catalog cpus", None, "No such command 'cpus'. Did you mean 'gpus'?"),
    ("pln -f x", None, "Did you mean one of: 'explain', 'plan'?"),
    ("catalog gpus --match zzz", None, "no name has 'zzz' in it"),
    ("catalog models --match zzz", None, "no name has 'zzz' in it"),
    (f"plan {LINE} -o xml", None, "'xml' is not one of 'text', 'json'"),
    (f"compare {LINE} --html - -o json", None, "both print to standard output"),
    (f"compare {SMALL} --html /nowhere/compare.html", None, "No such file or directory"),
]
NO_MANIFESTS = [
    ("plan -f /nowhere/model.yaml", None, "/nowhere/model.yaml: No such file or directory"),
    ("plan -f -", "", "no ModelDeployment of tonnage.dev in -"),
    ("plan -f -", "\x00\x01", "control characters are not allowed (at byte 0)"),
    ("plan -f -", "hello", "not a Kubernetes object but 'hello'"),
    ("plan -f -", "- a\n- b\n", "not a Kubernetes object but"),
    ("plan -f -", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n", "skipped v1 Pod a"),
    ("plan -f -", deployed("v1alpha1", "v9"), "apiVersion is 'tonnage.dev/v9', expected"),
    ("plan -f -", deployed("name: llama-70b", "name: Llama_70B"), "must be a DNS label"),
    ("plan -f -", f"{LLAMA}spec: {{}}\n", "spec: is given twice, first in line 6"),
    ("plan -f -", "spec:\n\tmodel: x\n", ":2: a tab in the indentation; YAML takes spaces only"),
    ("plan -f -", "spec: *x\n", "alias *x comes before its anchor"),
    ("plan -f -", "spec: !secret x\n", "tag !secret is not allowed"),
    ("plan -f -", "spec:\n  <<: x\n", "<< takes a mapping, or a list of mappings"),
    ("compare -f -", f"{LLAMA}---\n{LLAMA.replace('llama-70b', 'b')}", "holds 2: llama-70b, b"),
]
BAD_VALUES = [
    ("plan -f -", deployed("p95: 2s", "p95: 2"), "quote it, with a unit, such as 2s or 2ms"),
    ("plan -f -", deployed('"0.33"', "0.33"), 'quote it, such as "0.33"'),
    ("plan -f -", deployed('"0.33"', "latest"), "spec.engine.version: String should match"),
    (f"plan {H100} --rps 1 --start-up 0s", None, "'0s' is not a duration like 50ms, 2s, 5m or 1h"),
    (f"plan {H100} --rps 0", None, "0 is not above 0 and up to 1000000"),
    (f"plan {H100} --rps -1", None, "-1 is not above 0 and up to 1000000"),
    (f"plan {H100} --rps nan", None, "nan is not above"),
    (f"plan {H100} --rps inf", None, "inf is not above"),
    (f"plan {H100} --rps four", None, "'four' is not a valid float"),
    (f"plan {H100} --rps 0.00001", None, "--rps 1e-05: a spec has 4 decimals of it at most"),
    (f"plan {H100} --prompt 0", None, "'0' is not a number of tokens"),
    (f"plan {H100} --prompt 4x", None, "'4x' is not a number of tokens such as 4000, 4k or 1e3"),
    (f"plan {H100} --set contextLength=1.5", None, "'1.5' is not a number of tokens"),
    (f"plan {H100} --output json", None, "json is a format: write -o json"),
    (f"plan {H100} --tpot 50", None, "'50' is not a duration like 50ms"),
    (f"plan {H100} --tpot=-5ms", None, "'-5ms' is not a duration"),
    (f"plan {H100} --ttft 2sec", None, "; did you mean 2s?"),
    (f"plan {H100} --tpot 50msec", None, "; did you mean 50ms?"),
    (f"plan {LINE} --ttft 3h", None, "at most 1h (read: '3h')"),
    (f"plan {H100} --set", None, "Option '--set' requires an argument"),
    (f"plan {H100} --set slo", None, "write PATH=VALUE"),
    (f"plan {H100} --set slo={{", None, "did not find expected node content"),
    (
        f"plan {H100} --set scaling.maxReplica=4",
        None,
        "unknown field; did you mean spec.scaling.maxReplicas?",
    ),
    (
        f"plan {H100} --set scaling.minReplicas=9 --set scaling.maxReplicas=2",
        None,
        "minReplicas 9 must not exceed maxReplicas 2",
    ),
    (
        "plan -f -",
        deployed("requestsPerSecond: 4", "requestsPerSecond: 4\n    tokensPerDay: 9"),
        "at most one of requestsPerSecond, tokensPerSecond, tokensPerDay, concurrentUsers",
    ),
    (f"plan {H100} --set model.adapters={{number: 4, rank: 24}}", None, "Input should be 8, 16"),
    (f"plan {H100} --set engine.maxNumBatchedTokens=8", None, "greater than or equal to 32"),
    (
        f"plan {H100} --set engine.args=[--max-model-len=9]",
        None,
        "--max-model-len is not allowed in engine.args: contextLength sets it",
    ),
    (f"plan {H100} --set engine.args=[--enable-lora]", None, "model.adapters sets it"),
    (f"plan {H100} --set engine.args=[--lora-modules=a=b]", None, "needs model.adapters"),
    (
        f"plan {H100} --set engine.args=[--max-num-batched-tokens=1]",
        None,
        "engine.maxNumBatchedTokens sets it",
    ),
    (
        f"plan {H100} --set engine.args=[--frobnicate]",
        None,
        "the allowed flags are allow-deprecated-quantization",
    ),
]
UNKNOWN = [
    ("plan --model llama --gpu H100", None, "must be ORGANISATION/NAME, as on Hugging Face"),
    (
        "plan --model meta-llama/Llama-3.1-9B --gpu H100",
        None,
        "(did you mean meta-llama/Llama-3.1-8B",
    ),
    (f"plan {MODEL} --gpu H1000", None, "'H1000' is not in the catalogue (did you mean H100"),
    (f"plan {MODEL} --gpu A100", None, "'A100' means several boards: A100-40GB"),
    (f"plan {MODEL} --gpu V100", None, "vLLM from 0.21 on needs compute capability 7.5"),
    (f"plan {MODEL} --gpu P100", None, "NVIDIA GPUs of compute capability 7.0 or more"),
    (f"plan {H100} --gpu L4", None, "plan takes one GPU class, not H100, L4"),
    (f"compare {MODEL} --gpus H100,H200", None, "to name GPU classes write --gpu H100,H200"),
    (f"plan {H100} --set engine.version=0.5", None, "vLLM before 0.11 is not supported"),
    (f"plan {H100} --calibration /nowhere.json", None, "/nowhere.json: No such file"),
    (f"plan {H100} --model-config /nowhere.json", None, "--model-config /nowhere.json: No such"),
    (f"plan {H100} --checkpoint /nowhere", None, "Directory '/nowhere' does not exist"),
    (f"plan {H100} --prices /nowhere.yaml", None, "--prices /nowhere.yaml: No such file"),
    (f"plan {H100} --price H100", None, "write NAME=AMOUNT, such as H100=2.10"),
    (f"plan {H100} --price H100=cheap", None, "'cheap' is no price per GPU and hour"),
    (f"plan {H100} --price H1000=2", None, "'H1000' is not in the catalogue (did you mean H100"),
    (f"plan {H100} --rate spot", None, "--rate chooses among the rates of --prices FILE"),
]
NOES = [
    (f"plan {MODEL} --gpu T4 {LOAD} --set hardware.gpusPerReplica=1", "No (DoesNotFit)"),
    (f"plan {LINE} --tpot 1ms", "No (SLOInfeasible): timePerOutputToken: one request alone"),
    (f"plan {LINE} --set contextLength=1000000", "No (ContextTooLong)"),
    (f"plan {LINE} --rps 400 --set scaling.maxReplicas=2", "replicas, maxReplicas allows 2"),
    (f"plan {MODEL} --gpu V100-32GB {LOAD}", "vLLM from 0.21 on needs compute capability 7.5"),
    (
        f"plan --model google/gemma-4-31B-it {QWEN} --set engine.version=0.18",
        "engine.version 0.18: vLLM serves models of the kind gemma4 from 0.19 on",
    ),
    (
        f"plan --model Qwen/Qwen3-30B-A3B {QWEN} --set model.adapters={{number: 4, rank: 16}}",
        "No (InvalidAdapters)",
    ),
    (
        f"plan {MODEL} --gpu T4 {LOAD} --set model.kvCache=fp8",
        "a cache in fp8 needs compute capability",
    ),
]


@pytest.mark.parametrize(
    ("line", "text", "expected"), [*MISTYPED, *NO_MANIFESTS, *BAD_VALUES, *UNKNOWN]
)
def test_bad_input_ends_with_3_and_says_what_is_wrong(line, text, expected):
    result = run(*words(line), text=text)

    assert result.exit_code == 3, result.output
    assert expected in " ".join(result.output.split())
    assert "Traceback" not in result.output


@pytest.mark.parametrize(("line", "expected"), NOES)
def test_what_cannot_be_served_ends_with_2_and_says_why(line, expected):
    result = run(*words(line))

    assert result.exit_code == 2, result.output
    assert expected in " ".join(result.stdout.split())
    assert "Traceback" not in result.output
