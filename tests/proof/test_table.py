"""What is rendered today is what the releases of vLLM were asked about, and none refuses it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from proof_images import Image, read_image
from proof_kernels import Kernels, UnknownFormError, read_kernels
from proof_manifests import CASES, masked, rendered, rendered_case
from proof_page import problems, readings
from proof_verdicts import Cache, cache_problem, image_problem

from tonnage.api.pods import EngineSpec

TABLE = json.loads((Path(__file__).parent / "table.json").read_text())
RELEASES = list(TABLE["versions"])
OLDEST, *BETWEEN, NEWEST = RELEASES
SAMPLED = [OLDEST, NEWEST, *(pytest.param(each, marks=pytest.mark.thorough) for each in BETWEEN)]
AGAIN = "what is rendered has changed: run `python tests/proof/run.py` and read what it says"


@pytest.mark.parametrize("release", SAMPLED)
def test_what_is_rendered_is_what_the_release_was_asked_about(release):
    said = TABLE["versions"][release]["rows"]
    minor = ".".join(release.split(".")[:2])
    for name in CASES:
        made = rendered(name, minor)
        row = said[name]
        if "refused" in row:
            assert made == {"refused": row["refused"]}, f"{name}: {AGAIN}"
        else:
            kept = {**made, "args": masked(made.get("args", []))}
            assert kept == TABLE["containers"][row["container"]], f"{name}: {AGAIN}"


@pytest.mark.parametrize(
    ("row", "sizes"),
    [
        ("pipeline parallel", {"tensor": 2, "pipeline": 2}),
        ("MLA, data parallel", {"tensor": 1, "pipeline": 1, "data": 8}),
        ("experts, in parallel", {"tensor": 2, "pipeline": 1, "expert": True}),
    ],
)
def test_parallelism_is_rendered_as_the_newest_release_was_asked_about(row, sizes):
    asked = CASES[row]
    hardware = {"gpu": asked.spec["hardware"]["gpu"], "parallelism": sizes}
    engine = {"args": []}
    case = replace(asked, spec={**asked.spec, "hardware": hardware, "engine": engine}, split=None)

    made = rendered_case(case, ".".join(NEWEST.split(".")[:2]))

    said = TABLE["containers"][TABLE["versions"][NEWEST]["rows"][row]["container"]]
    # --enable-expert-parallel stands elsewhere among the arguments of the user's own.
    assert sorted(masked(made["args"])) == sorted(said["args"])


@pytest.mark.parametrize("release", RELEASES)
def test_no_release_refuses_what_is_rendered_for_it(release):
    rows = TABLE["versions"][release]["rows"]
    found = {name: list(problems(row)) for name, row in rows.items() if "refused" not in row}
    assert {name: said for name, said in found.items() if said} == {}


def test_no_release_reads_a_flag_of_a_scale_target_otherwise():
    signs = dict(readings(TABLE))
    assert [text for text, found in signs.items() if "NO" in found] == []
    assert all("=" in found for text, found in signs.items() if not text.endswith(("4k", "4K")))


def test_a_plain_model_is_served_by_every_release():
    plain = [each["rows"]["bf16"] for each in TABLE["versions"].values()]
    assert all("refused" not in row for row in plain)


KERNELS = Kernels(
    names={"auto": "as the model", "bfloat16": "as the model", "fp8": "fp8"}, source=""
)
OLD = Kernels(names={"auto": "as the model", "fp8": "fp8"}, source="")


@pytest.mark.parametrize(
    ("name", "model_dtype", "kernels", "words"),
    [
        ("bfloat16", "bfloat16", OLD, "the kernels that write the cache do not know bfloat16"),
        ("bfloat16", "float16", KERNELS, "the cache is written in float16 and read as bfloat16"),
        ("bfloat16", "bfloat16", KERNELS, None),
        ("auto", "float16", OLD, None),
        ("fp8", "float16", OLD, None),
    ],
)
def test_a_cache_is_judged_by_the_kernels_that_write_it(name, model_dtype, kernels, words):
    cache = Cache(name=name, model_dtype=model_dtype, kind="dense")
    assert cache_problem(cache, kernels, {}) == words


API_SERVER = Image(
    entrypoint=["python3", "-m", "vllm.entrypoints.openai.api_server"],
    user="",
    user_ids=[],
    names={},
)
SERVE = Image(entrypoint=["vllm", "serve"], user="", user_ids=[2000], names={})
NAMELESS = Image(entrypoint=["vllm", "serve"], user="", user_ids=[], names={})


@pytest.mark.parametrize(
    ("image", "command", "env", "words"),
    [
        (API_SERVER, [], {"USER": "vllm"}, "takes the model as --model"),
        (API_SERVER, ["vllm", "serve"], {"USER": "vllm"}, None),
        (SERVE, [], {}, None),
        (NAMELESS, [], {}, "user 2000 has no name in the image"),
        (NAMELESS, [], {"USER": "vllm"}, None),
    ],
)
def test_a_container_is_judged_by_the_image(image, command, env, words):
    said = image_problem({"command": command, "env": env, "user": 2000}, image)
    assert (said is None) == (words is None)
    assert (words or "") in (said or "")


DOCKERFILE = """\
FROM ubuntu AS base
RUN useradd --uid 2000 --gid 0 vllm \\
    && true
FROM base AS vllm-openai
ENV USER=vllm
ENTRYPOINT ["vllm", "serve"]
FROM vllm-openai AS other
USER vllm
ENTRYPOINT ["other"]
"""


def test_an_image_is_read_from_its_own_stage_and_those_below(tmp_path):
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "Dockerfile").write_text(DOCKERFILE)
    assert read_image(tmp_path) == Image(
        entrypoint=["vllm", "serve"], user="", user_ids=[2000], names={"USER": "vllm"}
    )


def test_kernels_in_an_unknown_form_are_not_guessed_at(tmp_path):
    folder = tmp_path / "csrc" / "nvidia"
    folder.mkdir(parents=True)
    (folder / "quant_utils.cuh").write_text("#define SOMETHING_ELSE\n")
    with pytest.raises(UnknownFormError, match="DISPATCH_BY_KV_CACHE_DTYPE"):
        read_kernels(tmp_path)


def test_every_field_of_the_engine_is_in_some_manifest():
    written = {field for case in CASES.values() for field in case.spec["engine"]}
    fields = {str(field.alias) for field in EngineSpec.model_fields.values()}

    assert written | {"version", "image"} == fields | {"version", "image"}
