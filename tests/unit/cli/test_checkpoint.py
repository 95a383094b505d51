"""``tonnage plan --checkpoint`` and ``--hub``: the headers of files on disk and on a hub."""

import json
import os
import re
from dataclasses import dataclass, field, replace

import pytest

from checkpoint_builders import a_checkpoint, a_file, framed, llama_tensors
from cli_builders import CONFIG_JSON, llama, plan, run
from http_double import Reply, answering, json_reply, serving
from tonnage.api.objects import parse_model_deployment
from tonnage.catalog.gpu import built_in_gpus
from tonnage.catalog.safetensors import CheckpointError
from tonnage.cli.console import Failure
from tonnage.cli.read.hub import (
    FIRST_BYTES,
    INDEX,
    Folder,
    HubFiles,
    checkpoint_from_hub,
    checkpoint_in,
    may_lead_to,
    read_checkpoint,
)
from tonnage.cli.read.references import References
from tonnage.cli.read.strict_yaml import read_documents
from tonnage.cli.results.planning import PlanContext, Refused, answer, with_offers

SMALL = {"num_layers": 2, "hidden": 64, "kv": 32, "ffn": 128, "vocab": 512}
TENSORS = llama_tensors(**SMALL)
# Two tables of 512 x 64; per layer attention 12288, feed-forward 24576, norms 128; a norm of 64.
SMALL_BYTES = 2 * (2 * 32768 + 2 * (12288 + 24576 + 128) + 64)
CONFIG = json.dumps(
    json.loads(CONFIG_JSON)
    | {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 512,
    }
)
AS_STORED = llama(("    weights: fp8\n", ""), ("    requestsPerSecond: 4\n", ""))
"""Without a rate no replicas are searched for: what is read of files is the same."""
SLOW = llama(
    ("    weights: fp8\n", ""),
    ("    gpu: H200\n    gpusPerReplica: 2\n", "    gpu: GH200\n    gpusPerReplica: 1\n"),
    ("contextLength: 8192", "contextLength: 131072"),
    ("p95: 2s", "p95: 3s"),
    ("p95: 50ms", "p95: 30ms"),
    ('"0.33"', '"0.20"'),
    ("    requestsPerSecond: 4\n", ""),
    ("{mean: 4000, p99: 7000}", "{mean: 1000}"),
    ("{mean: 1000}\n  scaling", "{mean: 200}\n  scaling"),
)
AUTO = AS_STORED.replace("meta-llama/Llama-3.3-70B-Instruct", "my/model")
KEY = "hf_of_a_test"
NOWHERE = "http://127.0.0.1:9"
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def files(tensors=TENSORS):
    """Return the files of a checkpoint in two parts, by name."""
    names = sorted(tensors)
    parts = {ONE: names[:10], TWO: names[10:]}
    index = {
        "metadata": {"total_size": SMALL_BYTES},
        "weight_map": {name: file for file, held in parts.items() for name in held},
    }
    contents = {file: a_file({n: tensors[n] for n in held}) for file, held in parts.items()}
    return contents | {INDEX: json.dumps(index).encode()}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(CONFIG)
    for name, content in files().items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def inputs_of(result, name="checkpoint"):
    (answer,) = json.loads(result.stdout)
    inputs = answer["estimate"]["inputs"]
    return [each["value"] for each in inputs if each["name"] == name]


def test_a_folder_gives_every_tensor_of_its_files(folder):
    checkpoint = checkpoint_in(folder)

    assert checkpoint.total_bytes == SMALL_BYTES == 279_168
    assert {tensor.name for tensor in checkpoint.tensors} == set(TENSORS)
    assert checkpoint.notes == ()


def test_files_that_the_index_leaves_out_are_not_read(folder):
    (folder / "consolidated.safetensors").write_bytes(b"broken")

    assert checkpoint_in(folder).total_bytes == SMALL_BYTES


def test_a_folder_without_an_index_is_all_its_files(folder):
    (folder / INDEX).unlink()

    assert checkpoint_in(folder).total_bytes == SMALL_BYTES


def test_links_are_followed_as_in_the_cache_of_the_hubs_client(folder, tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    for number, name in enumerate(files()):
        (folder / name).rename(blobs / str(number))
        (snapshot / name).symlink_to(f"../blobs/{number}")

    assert checkpoint_in(snapshot).total_bytes == SMALL_BYTES


def test_a_plan_stands_on_the_headers_and_the_config_of_the_checkpoint(folder):
    result = plan(AUTO, options=["--checkpoint", folder, "-o", "json"])

    assert result.exit_code == 0, result.output
    assert inputs_of(result) == [
        "272.6 KiB in 21 tensors: safetensors headers",
        "weights agree: 272.6 KiB in the files, 272.6 KiB by config.json",
    ]
    assert '"origin": "looked up"' in result.stdout
    assert "safetensors headers" in plan(AUTO, options=["--checkpoint", folder]).stdout


def test_a_config_that_is_given_beats_the_one_of_the_checkpoint(folder, tmp_path):
    config = tmp_path / "other.json"
    config.write_text(json.dumps(json.loads(CONFIG) | {"intermediate_size": 256}))
    options = ["--checkpoint", folder, "--model-config", config, "-o", "json"]

    _, note = inputs_of(plan(AUTO, options=options))

    assert note.startswith("weights differ: 272.6 KiB in the files, 368.6 KiB by config.json: ")
    assert "dense_ffn 96.0 KiB and 192.0 KiB" in note


def test_a_checkpoint_without_a_config_is_of_the_model_in_the_catalogue(folder):
    (folder / "config.json").unlink()
    text = AS_STORED.replace("gpusPerReplica: 2", "gpusPerReplica: 4")

    first, note = inputs_of(plan(text, options=["--checkpoint", folder, "-o", "json"]))

    assert first == "272.6 KiB in 21 tensors: safetensors headers"
    assert note.startswith("weights differ: 272.6 KiB in the files, 131.4 GiB by config.json: ")


@pytest.mark.parametrize(("asked", "is_counted"), [("fp8", True), ("float16", False)])
def test_weights_in_another_format_than_the_files_have_are_counted(folder, asked, is_counted):
    text = AUTO.replace("id: my/model\n", f"id: my/model\n    weights: {asked}\n")

    values = inputs_of(plan(text, options=["--checkpoint", folder, "-o", "json"]))

    assert (values == ["counted as fp8: the files have bf16"]) is is_counted


def spoil(folder, name, content):
    (folder / name).unlink(missing_ok=True)
    if content is not None:
        (folder / name).write_bytes(content)


WHOLE = files()
FAULTS = {
    "truncated data": (TWO, WHOLE[TWO][:-1], f"{TWO}: cut off: header and tensors take"),
    "truncated header": (ONE, WHOLE[ONE][:50], f"{ONE}: cut off: the header ends at byte"),
    "truncated length": (ONE, b"\x01", f"{ONE}: cut off: 1 bytes"),
    "trailing bytes": (ONE, WHOLE[ONE] + b"\0", f"{ONE}: not all of it is tensors"),
    "huge length": (ONE, b"\xff" * 8, f"{ONE}: no safetensors file: its header would have"),
    "not UTF-8": (ONE, framed(b'{"\xff": 1}'), f"{ONE}: not UTF-8 text at byte 2"),
    "an LFS pointer": (ONE, b"version https://git-lfs", f"{ONE}: a Git LFS pointer"),
    "another file": (ONE, a_file({"a": ("U8", (1,))}), f"{ONE}: tensor 'lm_head.weight' is not"),
    "a missing file": (TWO, None, f"{TWO}: there is no such file"),
    "no index": (INDEX, b"[]", f"{INDEX}: the JSON is no object"),
    "a climbing index": (
        INDEX,
        b'{"weight_map": {"a": "../../etc/passwd"}}',
        f"{INDEX}: weight_map: tensor 'a' is in '../../etc/passwd', which is no name of a",
    ),
    "a broken config": (
        "config.json",
        b'{"a":\n1, "a": 2}',
        "config.json: key 'a' is given twice",
    ),
}


@pytest.mark.parametrize(("name", "content", "expected"), FAULTS.values(), ids=FAULTS)
def test_a_damaged_checkpoint_is_one_line(folder, name, content, expected):
    spoil(folder, name, content)
    result = plan(AUTO, options=["--checkpoint", folder])

    assert result.exit_code == 3
    assert result.stdout == ""
    assert result.stderr.startswith("Error: --checkpoint ")
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_pipe_in_place_of_a_file_does_not_hang(folder):
    spoil(folder, ONE, None)
    os.mkfifo(folder / ONE)

    with pytest.raises(Failure, match=f"{ONE}: there is no such file"):
        checkpoint_in(folder)


def test_a_link_that_leads_nowhere_is_no_folder_without_an_index(folder):
    spoil(folder, INDEX, None)
    (folder / INDEX).symlink_to("gone")

    with pytest.raises(Failure, match=f"{INDEX}: there is no such file"):
        checkpoint_in(folder)


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(Failure, match=r"no safetensors file, and no model\.safetensors\.index"):
        checkpoint_in(tmp_path)


def test_more_files_than_any_model_has_are_refused(tmp_path):
    weight_map = {f"t{number}": f"m{number}.safetensors" for number in range(501)}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))

    with pytest.raises(Failure, match="501 files; at most 500 are read"):
        checkpoint_in(tmp_path)


def test_headers_have_a_bound_of_all_together(folder):
    expected = f"{TWO}: the headers up to here have more than 1500 bytes"
    with pytest.raises(CheckpointError, match=expected):
        read_checkpoint(Folder(folder), max_headers_bytes=1500)


def test_what_changes_the_weights_is_offered_without_the_bytes_of_the_files():
    text = AS_STORED.replace("gpusPerReplica: 2", "gpusPerReplica: 1")
    (document,) = read_documents(text, source="x")
    tensors = llama_tensors(num_layers=80, hidden=8192, ffn=28672)

    terms = PlanContext(gpus=built_in_gpus())
    refused = answer(
        parse_model_deployment(document.content),
        terms,
        References(checkpoint=a_checkpoint(tensors)),
    )

    assert isinstance(refused, Refused)
    offers = with_offers(refused, terms).offers
    stored = {each.changes[0]: each.sizing.request.shape.stored for each in offers}
    assert stored.pop("model.weights: fp8") is None
    assert stored
    assert {each.attention for each in stored.values()} == {2 * 80 * 2 * 8192 * (8192 + 1024)}


def test_without_a_rate_no_way_out_is_passed_over_for_a_dearer_one():
    (document,) = read_documents(SLOW, source="x")
    known, own = built_in_gpus(), "GH200"
    others = ["A100-80GB", "H200", "B300", "A100-40GB", "RTX-PRO-6000"]

    def costs(*names):
        terms = PlanContext(gpus={name: known[name] for name in (own, *names)})
        refused = answer(parse_model_deployment(document.content), terms)
        assert isinstance(refused, Refused)
        return [each.bill.usd_per_hour for each in with_offers(refused, terms).offers]

    alone = sorted(usd for name in others for usd in costs(name))
    assert costs(*others) == alone[:4]


def a_hub(contents, *, has_ranges=True):
    """Answer as a hub does for nobody/model, with parts of files where they are asked for."""

    def answered(asked):
        listing = "/api/models/nobody/model/revision/main"
        if asked.path == listing:
            return json_reply({"siblings": [{"rfilename": name} for name in contents]})
        name = asked.path.removeprefix("/nobody/model/resolve/main/")
        if name not in contents:
            return Reply(status=404)
        content, wanted = contents[name], asked.headers.get("Range")
        if not (wanted and has_ranges):
            return Reply(body=content)
        last = min(int(re.fullmatch("bytes=0-([0-9]+)", wanted)[1]), len(content) - 1)
        headers = {"Content-Range": f"bytes 0-{last}/{len(content)}"}
        return Reply(status=206, body=content[: last + 1], headers=headers)

    return answered


def fetched(server, revision=None, **environment):
    environment = {"HF_ENDPOINT": server.url} | environment
    return checkpoint_from_hub("nobody/model", revision, environment=environment)


def test_a_hub_gives_what_the_folder_gives(folder):
    with serving(a_hub(files())) as server:
        checkpoint = fetched(server, HF_TOKEN=KEY)

    assert checkpoint == checkpoint_in(folder)
    assert {asked.headers["Authorization"] for asked in server.asked} == {f"Bearer {KEY}"}
    assert [asked.headers["Range"] for asked in server.asked] == [None] + ["bytes=0-131071"] * 2


def test_of_a_large_file_only_the_header_crosses_the_wire():
    content = a_file({"a.weight": ("BF16", (4096, 1024))})
    with serving(a_hub({"model.safetensors": content})) as server:
        checkpoint = fetched(server)

    assert checkpoint.total_bytes == 8 * 2**20
    assert [asked.path.rpartition("/")[2] for asked in server.asked] == [
        INDEX,
        "main",
        "model.safetensors",
    ]
    assert server.asked[-1].headers["Range"] == f"bytes=0-{FIRST_BYTES - 1}"


def test_a_header_longer_than_the_first_bytes_is_asked_for_again():
    tensors = {f"model.layers.0.mlp.experts.{n}.up_proj.weight": ("U8", (1,)) for n in range(2000)}
    content = a_file(tensors)
    with serving(a_hub({"model.safetensors": content})) as server:
        checkpoint = fetched(server)

    assert len(checkpoint.tensors) == 2000
    assert server.asked[-1].headers["Range"] == f"bytes=0-{len(content) - 2000 - 1}"


def test_a_hub_that_ignores_ranges_is_read_no_further_than_needed():
    with serving(a_hub(files(), has_ranges=False)) as server:
        assert fetched(server).total_bytes == SMALL_BYTES


def test_a_revision_with_a_slash_is_one_part_of_the_address():
    with serving(answering(Reply(status=404))) as server, pytest.raises(Failure):
        fetched(server, "refs/pr/1")

    assert server.asked[0].path == f"/nobody/model/resolve/refs%2Fpr%2F1/{INDEX}"


REFUSALS = {
    "gated": (Reply(status=401), "answered 401 for nobody/model; a gated model needs HF_TOKEN"),
    "gone": (Reply(status=404), "answered 404 for nobody/model"),
    "broken": (Reply(status=500), "answered 500 for nobody/model"),
    "no range": (Reply(status=416), "answered 416 for nobody/model"),
    "no index": (Reply(body=b"<html>"), f"nobody/model: {INDEX}: not JSON"),
    "cut": (Reply(body=b"{", headers={"Content-Length": "9"}), "cannot be reached: "),
    "elsewhere": (
        Reply(status=302, headers={"Location": "http://169.254.169.254/latest"}),
        "leads to http://169.254.169.254/latest, which is not followed",
    ),
    "another port": (Reply(status=302, headers={"Location": NOWHERE}), "which is not followed"),
    "a file": (Reply(status=302, headers={"Location": "file:///etc/passwd"}), "not followed"),
    "nonsense": (Reply(status=302, headers={"Location": "http://[::1"}), "be reached: ValueError"),
    "endless": (Reply(status=302, headers={"Location": "/again"}), "redirects more than 5 times"),
}


@pytest.mark.parametrize(("reply", "expected"), REFUSALS.values(), ids=REFUSALS)
def test_a_hub_that_does_not_help_is_said(reply, expected):
    with serving(answering(reply)) as server, pytest.raises(Failure) as caught:
        fetched(server)

    assert caught.value.message.startswith("--hub: ")
    assert expected in caught.value.message


@pytest.mark.parametrize(
    "told", ["bytes 5-9/10", "bytes 0-9/*", "bytes 0-9/99999999999999999999", ""]
)
def test_another_part_of_a_file_than_its_start_is_refused(told):
    def answered(asked):
        content = files()[asked.path.rpartition("/")[2]]
        is_part = "Range" in asked.headers
        headers = {"Content-Range": told} if is_part else {}
        return Reply(status=206 if is_part else 200, body=content, headers=headers)

    with serving(answered) as server, pytest.raises(Failure, match=r"the start of .*-00001-"):
        fetched(server)


def test_a_header_too_long_is_not_asked_for():
    content = b"\xff" * 8 + bytes(10**6)
    with (
        serving(a_hub({"model.safetensors": content})) as server,
        pytest.raises(Failure, match="its header would have 18446744073709551615 bytes"),
    ):
        fetched(server)

    assert len(server.asked) == 3


def test_an_index_on_a_hub_cannot_climb_either():
    index = b'{"weight_map": {"a": "../../../private/model.safetensors"}}'
    with serving(a_hub({INDEX: index})) as server, pytest.raises(Failure, match="weight_map"):
        fetched(server)

    assert len(server.asked) == 1


def test_a_redirect_within_the_hub_keeps_the_token_and_the_range():
    contents = a_hub(files())

    def answered(asked):
        if asked.path.startswith("/cache/"):
            return contents(replace(asked, path=asked.path.removeprefix("/cache")))
        return Reply(status=307, headers={"Location": f"/cache{asked.path}"})

    with serving(answered) as server:
        assert fetched(server, HF_TOKEN=KEY).total_bytes == SMALL_BYTES

    assert {asked.headers["Authorization"] for asked in server.asked} == {f"Bearer {KEY}"}
    assert server.asked[-1].headers["Range"] == "bytes=0-131071"


@dataclass
class Told:
    """What a session of the HTTP library answers, as far as it is read."""

    status_code: int = 206
    headers: dict = field(default_factory=lambda: {"Content-Range": "bytes 0-3/4"})

    @property
    def is_redirect(self):
        return "Location" in self.headers

    def iter_content(self, _):
        yield b"abcd"

    def close(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@dataclass
class Line:
    """A session that answers in turn, and keeps what it was asked."""

    answers: list
    asked: list = field(default_factory=list)

    def get(self, address, *, headers, **_):
        self.asked.append((address, headers))
        return self.answers.pop(0)


def test_the_token_does_not_follow_to_where_the_hub_keeps_its_files():
    store = "https://cas-bridge.xethub.hf.co/blob?signed=1"
    line = Line([Told(302, {"Location": store}), Told()])
    hub = HubFiles(
        session=line, hub="https://huggingface.co", token=KEY, model_id="a/b", revision="main"
    )

    _, file_bytes = hub.beginning("model.safetensors", num_bytes=8)

    assert file_bytes == 4
    (first, with_token), (second, without) = line.asked
    assert first == "https://huggingface.co/a/b/resolve/main/model.safetensors"
    assert with_token["Authorization"] == f"Bearer {KEY}"
    assert second == store
    assert "Authorization" not in without
    assert without["Range"] == "bytes=0-131071"


@pytest.mark.parametrize(
    ("address", "is_fine"),
    [
        ("https://huggingface.co/x", True),
        ("https://hf-mirror.example/x", True),
        ("https://cdn-lfs-us-1.hf.co/x", True),
        ("https://cdn-lfs.huggingface.co/x", True),
        ("http://cdn-lfs.hf.co/x", False),
        ("http://hf-mirror.example/x", False),
        ("https://hf-mirror.example:444/x", False),
        ("https://hf.co.example/x", False),
        ("https://evilhf.co/x", False),
        ("https://hf.co@example.com/x", False),
        ("ftp://huggingface.co/x", False),
    ],
)
def test_redirects_lead_to_the_hub_or_its_stores_only(address, is_fine):
    assert may_lead_to(address, hub="https://hf-mirror.example") is is_fine


def test_a_plan_with_a_hub_stands_on_its_headers():
    contents = files() | {"config.json": CONFIG.encode()}
    text = AUTO.replace("my/model", "nobody/model")
    with serving(a_hub(contents)) as server:
        result = run("plan", "-f", "-", "--hub", "-o", "json", text=text, HF_ENDPOINT=server.url)

    assert result.exit_code == 0, result.output
    assert inputs_of(result)[0] == "272.6 KiB in 21 tensors: safetensors headers"


def test_a_plan_goes_on_when_the_hub_has_no_headers():
    text = llama()
    result = run("plan", "-f", "-", "--hub", "-o", "json", text=text, HF_ENDPOINT=NOWHERE)

    assert result.exit_code == 0
    assert inputs_of(result) == []
    assert result.stderr.splitlines()[0] == (  # on a slow machine progress follows
        f"Note: --hub: {NOWHERE} cannot be reached: ConnectionError; the weights of "
        "meta-llama/Llama-3.3-70B-Instruct are counted from config.json"
    )


def test_a_checkpoint_that_is_given_asks_no_hub(folder):
    options = ["--checkpoint", folder, "--hub", "-o", "json"]
    result = run("plan", "-f", "-", *options, text=AUTO, HF_ENDPOINT=NOWHERE)

    assert result.exit_code == 0
    assert result.stderr == ""
