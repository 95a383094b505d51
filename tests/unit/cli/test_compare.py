"""``tonnage compare``: the ranking, its forms, its page, its refusals and its exit codes."""

import io
import itertools
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cli_builders import CONFIG_JSON, CONFIGURED, LLAMA, SCALED, a_config_map, a_deployment, run
from cli_builders import llama as manifest
from tonnage.api.objects import parse_model_deployment
from tonnage.catalog.gpu import Price, built_in_gpus
from tonnage.cli.answers.batches import BatchRow
from tonnage.cli.answers.comparing import compare_classes, watched
from tonnage.cli.answers.planning import Terms, question_of
from tonnage.cli.commands.compare import named_classes
from tonnage.cli.console import Failure
from tonnage.cli.page.compare_html import page
from tonnage.cli.page.compare_layout import (
    BOTTOM,
    HEIGHT,
    LEFT,
    NAMES_LEFT,
    RIGHT,
    WIDTH,
    BatchPoint,
    Course,
    course,
    throughput_layout,
    tick_values,
)
from tonnage.cli.page.plan_svg import Box, LogAxis
from tonnage.cli.text.compare import compared
from tonnage.sizing.selection import RefusedClass
from tonnage.sizing.steady import SteadyState
from tonnage.sizing.step import StepTime
from tonnage.sizing.workload import Promise, Slo

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "deploy" / "examples"
ALONE = [path for path in sorted(EXAMPLES.glob("*.yaml")) if path.stem != "scale-target"]
"""Those that need no Deployment beside them."""
GPUS = built_in_gpus()
FOUR = "H100,H200,L4,GH200"
SCRIPT = "<script>alert(1)</script>"
VOID = {"meta", "br"}
TOO_SLOW = manifest(("p95: 50ms", "p95: 5ms"))
FRAME = Box(left=0, top=0, right=WIDTH, bottom=HEIGHT)


def compare(*texts, options=(), **more):
    """Run ``tonnage compare -f -`` on these documents."""
    return run("compare", "-f", "-", *options, text="---\n".join(texts), **more)


def as_json(*texts, options=()):
    return json.loads(compare(*texts, options=["-o", "json", *options]).stdout)


def found(text=LLAMA, names=("H100", "H200", "L4", "GH200"), *, are_named=True, **changes):
    """Return the classes compared for a manifest; ``changes`` are made to every class."""
    deployment = parse_model_deployment(yaml.safe_load(text))
    gpus = [replace(GPUS[name], **changes) for name in names]
    question = question_of(deployment.spec, Terms(gpus=GPUS))
    return compare_classes(deployment, question, gpus, are_named=are_named)


def printed(compared_classes, columns):
    console = Console(file=io.StringIO(), width=columns, color_system=None)
    for part in compared(compared_classes, console):
        console.print(part)
    return console.file.getvalue()


def tree(text):
    assert text.startswith("<!DOCTYPE html>\n")
    return ET.fromstring(text.partition("\n")[2])  # noqa: S314  (our own output)


def words(element):
    return " ".join(" ".join(element.itertext()).split())


class Tags(HTMLParser):
    """Counts what is open; every tag must be closed in its turn."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.links = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.links += [value for name, value in attrs if name in {"href", "src", "xlink:href"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


class TestTheAnswer:
    def test_ranks_the_classes_by_what_the_demand_costs(self):
        answer = as_json(LLAMA, options=["--gpu", FOUR])
        usd = [each["estimate"].get("usdPerHour") for each in answer["classes"]]
        priced = [each for each in usd if each is not None]

        assert [each["rank"] for each in answer["classes"]] == list(range(1, len(usd) + 1))
        assert priced == sorted(priced)
        assert usd == [*priced, *[None] * (len(usd) - len(priced))]
        assert answer["classes"][-1]["gpu"] == "GH200"  # no public rent is known

    def test_stands_in_the_same_order_in_the_text(self):
        answer = as_json(LLAMA, options=["--gpu", FOUR])
        text = compare(LLAMA, options=["--gpu", FOUR], COLUMNS="120").stdout
        rows = re.findall(r"^ +([0-9]+) +([A-Z0-9-]+) +[TPD]", text, re.MULTILINE)

        assert rows == [(str(each["rank"]), each["gpu"]) for each in answer["classes"]]
        assert text.splitlines()[1].startswith(f"{answer['classes'][0]['gpu']} costs least: ")

    def test_holds_for_each_class_what_status_and_stages_and_batches_hold(self):
        (first, *_) = as_json(LLAMA, options=["--gpu", "H200"])["classes"]

        assert set(first) == {
            "rank", "gpu", "gpus", "plan", "estimate", "tokensPerSecondPerGpu",
            "withinMaxReplicas", "stages", "batches", "toValidate",
        }  # fmt: skip
        assert list(first["stages"]) == [
            "workload", "memory", "throughput", "cost", "measured validation",
        ]  # fmt: skip
        assert first["gpus"] == first["plan"]["replicas"] * first["plan"]["gpusPerReplica"]
        assert first["estimate"]["usdPerHour"] == pytest.approx(first["gpus"] * 7.91, rel=1e-3)
        assert [each["isLoadLine"] for each in first["batches"]].count(True) == 1
        for batch in first["batches"]:
            assert batch["tokensPerSecond"] == pytest.approx(
                batch["tokensPerSecondPerGpu"] * first["plan"]["gpusPerReplica"], rel=1e-3
            )
            assert batch["boundBy"] in {"memory", "compute", "prefill", "overhead", "links"}
        assert {"name", "value", "origin", "confirmedBy"} == set(first["toValidate"][0])

    def test_is_the_same_in_yaml(self):
        text = compare(LLAMA, options=["-o", "yaml", "--gpu", FOUR]).stdout

        assert yaml.safe_load(text) == as_json(LLAMA, options=["--gpu", FOUR])

    def test_covers_all_classes_where_none_is_named(self):
        answer = as_json(LLAMA)
        names = [each["gpu"] for each in (*answer["classes"], *answer["refused"])]

        assert sorted(names) == sorted(GPUS)

    def test_shows_the_manifest_as_it_stands(self):
        text = manifest(("gpusPerReplica: 2", "gpusPerReplica: 8"))
        answer = as_json(text, options=["--gpu", FOUR])
        shown = " ".join(compare(text, options=["--gpu", FOUR]).stdout.split())

        assert answer["asWritten"]["gpu"] == "H200"
        assert answer["asWritten"]["plan"]["gpusPerReplica"] == 8
        assert "As the manifest stands, H200: " in shown
        assert "is the same class with its best split" in shown

    def test_shows_a_manifest_that_cannot_stand(self):
        text = manifest(
            ("weights: fp8", "weights: bfloat16"), ("gpusPerReplica: 2", "gpusPerReplica: 1")
        )
        answer = as_json(text, options=["--gpu", "B200"])

        assert answer["asWritten"]["reason"] == "DoesNotFit"
        assert [each["gpu"] for each in answer["classes"]] == ["B200"]

    def test_tells_the_change_to_the_manifest(self):
        text = compare(LLAMA, options=["--gpu", "H100"]).stdout
        (choice,) = as_json(LLAMA, options=["--gpu", "H100"])["classes"]
        num_gpus = choice["plan"]["gpusPerReplica"]

        assert f"spec.hardware: {{gpu: H100, gpusPerReplica: {num_gpus}}}" in text

    def test_names_refused_classes_with_the_reason_in_text_and_data(self):
        big = manifest(("meta-llama/Llama-3.3-70B-Instruct", "deepseek-ai/DeepSeek-V3"))
        (refused,) = as_json(big, options=["--gpu", "H200,A10G"])["refused"]
        text = " ".join(compare(big, options=["--gpu", "H200,A10G"]).stdout.split())

        assert (refused["gpu"], refused["reason"]) == ("A10G", "DoesNotFit")
        assert "Refused A10G 20.3 GiB usable (92% of 22.1 GiB) - " in text

    def test_says_where_replicas_exceed_what_is_allowed(self):
        text = manifest(("maxReplicas: 8", "maxReplicas: 1"), ("PerSecond: 4", "PerSecond: 400"))
        (choice,) = as_json(text, options=["--gpu", "H100"])["classes"]

        assert not choice["withinMaxReplicas"]
        assert (
            "* more replicas than maxReplicas 1 allows"
            in compare(text, options=["--gpu", "H100"]).stdout
        )

    def test_says_which_classes_only_a_measurement_can_tell_apart(self, tmp_path):
        source = (ROOT / "operator/tonnage/catalog/gpus/h200.toml").read_text()
        twin = source.replace('name = "H200"', 'name = "TWIN"').replace("= 7.91", "= 8.00")
        (tmp_path / "twin.toml").write_text(twin)
        text = compare(LLAMA, options=["--gpus", tmp_path, "--gpu", "H200,TWIN"]).stdout

        assert "H200, TWIN: closer than the estimate of their speed is sure" in text

    def test_without_any_price_is_by_number_of_gpus(self):
        result = found(price=Price())
        text = " ".join(printed(result, 100).split())
        numbers = [choice.num_gpus for choice in result.selection.choices]

        assert numbers == sorted(numbers)
        assert "takes the fewest GPUs; no price is known" in text
        assert "no price" in text

    def test_without_a_demand_is_by_the_price_of_a_token(self):
        text = manifest(("    requestsPerSecond: 4\n", ""))
        answer = as_json(text, options=["--gpu", "H100,H200,L4"])
        usd = [each["estimate"]["usdPerMillionTokens"] for each in answer["classes"]]

        assert usd == sorted(usd)
        assert "no demand is given" in compare(text, options=["--gpu", "H100"]).stdout


class TestOffline:
    TEXT = (EXAMPLES / "offline-batch.yaml").read_text()

    def test_is_at_the_memory_ceiling_and_counts_the_tokens_of_a_day(self):
        answer = as_json(self.TEXT, options=["--gpu", "H100,H200"])
        first = answer["classes"][0]
        per_s = first["stages"]["throughput"]["tokensPerSecond"]

        assert answer["mode"] == "offline"
        assert first["stages"]["workload"]["outputTokensPerSecond"] == 11570  # 1e9 / 86,400
        assert first["plan"]["replicas"] == pytest.approx(11_574 / per_s, abs=1)
        assert first["plan"]["limitedBy"] == "KVCache"

    def test_promises_no_ttft_and_draws_no_slo(self):
        text = compare(self.TEXT, options=["--gpu", "H100"], COLUMNS="120").stdout
        html = compare(self.TEXT, options=["--gpu", "H100", "--html", "-"]).stdout

        assert "offline, at the memory ceiling" in text
        assert "TTFT " not in text.partition("1. H100")[2].partition("To be validated")[0]
        assert 'class="ceiling slo"' not in html
        assert "nothing is promised about TPOT" in html


class TestOwnedGpus:
    def test_cost_their_price_over_their_life_their_power_and_their_upkeep(self, tmp_path):
        source = (ROOT / "operator/tonnage/catalog/gpus/h100.toml").read_text()
        owned = (
            "purchase_usd = 30_000\namortization_hours = 30_000\npower_usd_per_kwh = 0.2\n"
            "upkeep_usd_per_hour = 0.36\n"
        )
        (tmp_path / "h100.toml").write_text(source.replace("purchase_usd = 30_000\n", owned))
        (choice,) = as_json(LLAMA, options=["--gpus", tmp_path, "--gpu", "H100"])["classes"]
        cost = choice["stages"]["cost"]
        text = " ".join(
            compare(LLAMA, options=["--gpus", tmp_path, "--gpu", "H100"]).stdout.split()
        )

        # 30,000 / 30,000 + 0.7 kW * 0.2 + 0.36
        assert (cost["basis"], cost["usdPerGpuHour"]) == ("owned", 1.5)
        assert cost["usdPerHour"] == pytest.approx(1.5 * choice["gpus"])
        assert "30,000 USD / 30,000 h + 700 W at 0.200 USD/kWh + 0.36 USD upkeep" in text

    def test_with_half_a_price_are_refused_in_one_line(self, tmp_path):
        source = (ROOT / "operator/tonnage/catalog/gpus/h200.toml").read_text()
        half = source.replace("[price]\n", "[price]\namortization_hours = 30_000\n")
        (tmp_path / "h200.toml").write_text(half)
        result = compare(LLAMA, options=["--gpus", tmp_path])

        assert result.exit_code == 2
        assert "GPU class file h200.toml" in result.stderr
        assert "price.amortization_hours needs price.purchase_usd" in result.stderr
        assert result.stderr.count("\n") == 1


def test_users_with_a_duty_cycle_share_the_bill():
    text = (EXAMPLES / "qwen3-8b-l4.yaml").read_text()
    (choice,) = as_json(text, options=["--gpu", "L4"])["classes"]
    stages = choice["stages"]

    assert (stages["workload"]["users"], stages["workload"]["dutyFraction"]) == (300, 0.3)
    assert stages["cost"]["usdPerHourAndUser"] == pytest.approx(
        choice["gpus"] * 0.80 / 300, rel=1e-3
    )


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_no_line_is_wider_than_the_screen(columns):
    for text in (LLAMA, TOO_SLOW, TestOffline.TEXT):
        result = compare(text, options=["--gpu", f"{FOUR},V100-PCIe-16GB"], COLUMNS=str(columns))
        lines = result.stdout.splitlines()

        assert max(map(len, lines)) <= columns
        assert [line for line in lines if line != line.rstrip()] == []


def test_a_wide_screen_has_one_table_and_a_narrow_one_two():
    heads = {
        columns: [
            line
            for line in compare(LLAMA, options=["--gpu", FOUR], COLUMNS=str(columns))
            .stdout.partition("\n1. ")[0]
            .splitlines()
            if line.split()[:2] == ["#", "class"]
        ]
        for columns in (80, 120)
    }

    assert [len(each) for each in heads.values()] == [2, 1]
    assert "TPOT" in heads[120][0]
    assert "USD per" in printed(found(), 120)


def test_all_classes_are_ranked_and_the_cheapest_and_the_own_one_are_in_full():
    text = compare(LLAMA, COLUMNS="120").stdout
    in_full = re.findall(r"spec.hardware: {gpu: ([^,]+),", text)

    assert 3 <= len(in_full) <= 4
    assert "H200" in in_full
    assert "--gpu NAME,NAME shows others" in text


def test_what_all_classes_share_is_said_once():
    text = printed(found(), 120)
    own, _, shared = text.partition("To be validated by measurement")

    assert own.count("Poisson, through a Service") == 0
    assert shared.count("Poisson, through a Service") == 1
    assert " ".join(own.split()).count("KV tokens: ") == len(found().in_full)


class TestTheCommand:
    def test_ends_with_no_where_no_class_will_do(self):
        result = compare(TOO_SLOW, options=["--gpu", FOUR])

        assert result.exit_code == 2
        assert "No: none of these classes can serve it" in result.stdout
        assert compare(LLAMA, options=["--gpu", "H100"]).exit_code == 0

    def test_says_so_on_standard_error_where_the_answer_is_data(self):
        result = compare(TOO_SLOW, options=["--gpu", FOUR, "-o", "json"])

        assert result.exit_code == 2
        assert json.loads(result.stdout)["classes"] == []
        assert result.stderr == "Error: serving/llama-70b: none of these classes can serve it\n"

    @pytest.mark.parametrize(
        ("texts", "options", "expected"),
        [
            ((LLAMA, manifest(("name: llama-70b", "name: b"))), [], "holds 2: llama-70b, b"),
            ((a_config_map(),), [], "- holds 0"),
            ((manifest(("H200", "{}")),), [], "spec.hardware.gpu"),
            ((manifest(("gpu: H200", "gpu: H20O")),), [], "UnknownGpu: hardware.gpu 'H20O'"),
            ((LLAMA,), ["--gpu", "H100,X1"], "--gpu 'X1' is not in the catalogue; known: A100"),
            ((LLAMA,), ["--gpu", ","], "--gpu '' is not in the catalogue"),
            ((LLAMA,), ["--html", "-", "-o", "json"], "both print to standard output"),
            ((LLAMA,), ["--requests-per-second", "nan"], "--requests-per-second"),
            ((SCALED,), [], "Deployment serving/my-vllm is not in these files"),
            (
                (LLAMA,),
                ["--gpu", "H100", "--html", "/nowhere/x.html"],
                "--html /nowhere/x.html: No such file",
            ),
            (("a: [",), [], "Error: "),
        ],
    )
    def test_says_in_words_what_is_wrong_with_its_input(self, texts, options, expected):
        result = compare(*texts, options=options)

        assert result.exit_code == 2
        assert expected in " ".join(result.stderr.split())
        assert result.stdout == ""

    def test_takes_names_and_aliases_each_once(self):
        names = named_classes(("H100, H200", "H100-SXM"), GPUS)

        assert [gpu.name for gpu in names] == ["H100", "H200"]
        assert len(named_classes((), GPUS)) == len(GPUS)
        with pytest.raises(Failure, match="--gpu 'X1'"):
            named_classes(("X1",), GPUS)

    def test_asks_for_another_demand(self):
        few, many = (
            as_json(LLAMA, options=["--gpu", "H100", "--requests-per-second", rate])["classes"][0]
            for rate in ("0.1", "40")
        )

        assert few["plan"]["replicas"] == 1
        assert many["stages"]["workload"]["requestsPerSecond"] == 40
        assert many["gpus"] > few["gpus"]

    def test_takes_a_model_that_the_catalogue_lacks(self, tmp_path):
        path = tmp_path / "config.json"
        path.write_text(CONFIG_JSON)
        given_file = as_json(CONFIGURED, options=["--gpu", "H100", "--model-config", path])
        given_map = as_json(CONFIGURED, a_config_map(), options=["--gpu", "H100"])

        assert given_file["classes"] == given_map["classes"]

    def test_leaves_the_flags_of_a_scale_target_open_for_other_classes(self):
        answer = as_json(SCALED, a_deployment(), options=["--gpu", "H100"])

        assert answer["asWritten"]["plan"]["maxNumSeqs"] == 48
        assert answer["classes"][0]["plan"]["maxNumSeqs"] != 48

    def test_can_leave_overheads_out(self):
        real, textbook = (
            as_json(LLAMA, options=["--gpu", "H100", *more])["classes"][0]
            for more in ([], ["--textbook"])
        )

        assert textbook["tokensPerSecondPerGpu"] > real["tokensPerSecondPerGpu"]
        assert "efficiency" in [each["name"] for each in textbook["toValidate"]]

    @pytest.mark.parametrize("name", ["llama-3.3-70b-h200", "deepseek-v3-h200", "recommend"])
    def test_has_an_answer_for_the_examples(self, name):
        result = run("compare", "-f", EXAMPLES / f"{name}.yaml", "--gpu", "H200,B200")

        assert result.exit_code == 0, result.output

    def test_has_help_with_examples(self):
        text = run("compare", "--help").stdout

        assert "    tonnage compare -f model.yaml --gpu H100,H200,L40S" in text

    def test_imports_no_cluster_and_no_picture(self):
        script = (
            "import sys, click.testing\n"
            "from tonnage.cli.commands.app import program\n"
            "command = ['compare', '-f', '-', '--gpu', 'H100']\n"
            "result = click.testing.CliRunner().invoke(program, command, sys.stdin.read())\n"
            "assert result.exit_code == 0, result.output\n"
            "heavy = {'kopf', 'kubernetes', 'requests', 'aiohttp', 'matplotlib'}\n"
            "print(sorted(heavy & set(sys.modules)))\n"
        )
        command = [sys.executable, "-c", script]
        done = subprocess.run(  # noqa: S603
            command, input=LLAMA, capture_output=True, text=True, check=False
        )

        assert (done.stdout, done.stderr) == ("[]\n", "")


class TestProgress:
    def told(self, seconds_each, number=6):
        """Return what is told when every class takes so long."""
        times = itertools.count(0, seconds_each)
        lines = []
        gpus = list(itertools.islice(GPUS.values(), number))

        assert list(watched(gpus, clock=lambda: next(times), tell=lines.append)) == gpus
        return lines

    def test_is_silent_for_two_seconds(self):
        assert self.told(0.3) == []

    def test_tells_how_far_it_is_after_that(self):
        first, *_ = self.told(2.0)

        assert first == f"Comparing: 0 of 6 GPU classes done, {next(iter(GPUS))} is next"

    def test_tells_no_more_than_once_a_second(self):
        # The clock is asked at 0, 0.7, 1.4 s, ...: told at 2.1, 3.5, 4.9.
        assert len(self.told(0.7, number=8)) == 3


class TestThePage:
    def test_is_well_formed_and_needs_nothing_beside_itself(self):
        text = compare(LLAMA, options=["--gpu", FOUR, "--html", "-"]).stdout
        tags = Tags()
        tags.feed(text)

        assert tags.open == []
        assert tree(text).tag == "html"
        assert tags.seen.count("svg") == 2
        assert not {"script", "link", "img", "iframe"} & set(tags.seen)
        assert tags.links == []
        assert "url(" not in text
        assert "@import" not in text
        assert "prefers-color-scheme: dark" in text

    def test_says_of_every_picture_what_it_shows(self):
        root = tree(compare(LLAMA, options=["--gpu", FOUR, "--html", "-"]).stdout)
        names = [each.get("id") for each in root.iter() if each.get("id")]

        assert len(names) == len(set(names))
        for svg in root.iter("svg"):
            title, desc = svg[0], svg[1]
            assert (title.tag, desc.tag, svg.get("role")) == ("title", "desc", "img")
            assert "H200" in desc.text

    def test_has_the_answer_the_ranking_and_the_stages_of_each_class(self):
        result = found()
        root = tree(page(result))
        text = words(root)
        rows = [[words(cell) for cell in row] for row in root.iter("tr")]
        ranks = [row[1] for row in rows if row[0].isdigit() and len(row) == 13]

        assert words(root.find("body/section/h2")).endswith("USD per million output tokens")
        assert ranks == [choice.gpu.name for choice in result.selection.choices]
        assert text.count("measured validation") == len(result.in_full)
        assert "arrivals Poisson, through a Service guessed" in text

    def test_draws_a_line_per_class_with_one_load_line_and_the_slo(self):
        text = page(found(names=("H100", "H200")))

        assert len(re.findall(r'class="class s[0-9]"', text)) == 2
        assert len(re.findall(r'class="batch load-line s[0-9]"', text)) == 2
        assert text.count('class="ceiling slo"') == 1
        assert "SLO p95 50.0 ms" in text

    def test_draws_the_cheapest_and_the_own_class_where_all_are_compared(self):
        result = found(
            manifest(("gpu: H200", "gpu: H20"), ("    gpusPerReplica: 2\n", "")), tuple(GPUS)
        )
        root = tree(page(replace(result, are_named=False)))
        names = [words(each) for each in root.iter("text") if "name s" in each.get("class", "")]

        assert len(names) == 6
        assert "H20" in names
        assert "more classes are in the ranking only" in words(root)

    def test_without_a_price_has_no_bars(self):
        root = tree(page(found(price=Price())))

        assert len(list(root.iter("svg"))) == 1

    def test_where_no_class_will_do_says_why(self):
        result = found(TOO_SLOW)
        root = tree(page(result))

        assert result.selection.choices == ()
        assert "No: none of these classes can serve it" in words(root)
        assert words(root).count("timePerOutputToken: one request alone on") >= 4
        assert root.find("body/section").get("class") == "no"

    def test_cannot_be_made_to_hold_markup_of_others(self):
        result = found()
        choices = tuple(
            replace(
                choice,
                sizing=replace(
                    choice.sizing,
                    question=replace(
                        choice.sizing.question, gpu=replace(choice.gpu, name=f"{SCRIPT}{number}")
                    ),
                ),
            )
            for number, choice in enumerate(result.selection.choices)
        )
        refused = RefusedClass(
            gpu=replace(GPUS["L4"], name=SCRIPT), reason=SCRIPT, message=f"{SCRIPT}\x00"
        )
        text = page(
            replace(
                result,
                deployment=replace(result.deployment, name=SCRIPT),
                selection=replace(result.selection, choices=choices, refused=(refused,)),
                as_written=refused,
            )
        )

        assert "<script" not in text
        assert text.count("&lt;script&gt;") > 10
        assert SCRIPT in words(tree(text))

    def test_goes_to_a_file_beside_the_text(self, tmp_path):
        path = tmp_path / "compare.html"
        result = compare(LLAMA, options=["--gpu", "H100", "--html", path])

        assert result.exit_code == 0
        assert "costs least" in result.stdout
        assert result.stderr == f"Wrote {path}\n"
        assert tree(path.read_text(encoding="utf-8")).tag == "html"


def a_point(tpot_s, tokens_per_s, *, number, is_load_line=False):
    step = StepTime(
        overhead_s=0.0,
        memory_s=tpot_s,
        compute_s=0.0,
        prefill_s=0.0,
        communication_s=0.0,
        decode_bytes=1.0,
        decode_flop=1.0,
    )
    state = SteadyState(
        num_decoding=2.0**number,
        num_prefilling=0.0,
        prefill_tokens_per_step=0.0,
        step=step,
        requests_per_s=1.0,
    )
    row = BatchRow(
        state=state, cells=("1", "memory"), is_load_line=is_load_line, over=(), remark=""
    )
    return BatchPoint(row=row, tpot_s=tpot_s, tokens_per_s_per_gpu=tokens_per_s)


def a_course(name, series, times):
    points = tuple(
        a_point(tpot_s, 2.0**number / tpot_s, number=number, is_load_line=number == 1)
        for number, tpot_s in enumerate(times)
    )
    return Course(name=name, series=series, points=points)


def overlapping(labels):
    pairs = itertools.combinations(labels, 2)
    return [(a.lines, b.lines) for a, b in pairs if a.box.overlaps(b.box)]


times = st.lists(st.floats(min_value=1e-3, max_value=5.0), min_size=2, max_size=9, unique=True).map(
    sorted
)
promises = st.lists(
    st.tuples(st.sampled_from([0.5, 0.9, 0.95, 0.99]), st.floats(min_value=2e-3, max_value=5.0)),
    max_size=4,
    unique_by=lambda each: each[0],
)


@given(st.lists(times, min_size=1, max_size=6), promises)
def test_labels_never_overlap_and_stay_within_the_picture(courses, promised):
    slo = Slo(tpot=tuple(Promise(quantile=q, limit_s=limit_s) for q, limit_s in promised))
    layout = throughput_layout(
        [a_course(f"RTX-PRO-6000-{n}", n + 1, each) for n, each in enumerate(courses)], slo
    )
    dots = [dot for each in layout.courses for dot in each.dots]
    lines = [limit.line for limit in layout.limits]
    numbers = [each.number for each in layout.courses if each.number]

    assert overlapping(layout.labels) == []
    assert [label.lines for label in layout.labels if not FRAME.holds(label.box)] == []
    for label, dot in itertools.product(layout.labels, dots):
        assert not label.box.overlaps(dot.box)
    for label, line in itertools.product(
        [*numbers, *(limit.label for limit in layout.limits)], lines
    ):
        assert not line.crosses(label.box)
    for dot in dots:
        assert LEFT <= dot.place.x <= RIGHT
        assert layout.plot.top <= dot.place.y <= BOTTOM
    for limit in layout.limits:
        assert LEFT <= limit.line.start.x <= RIGHT
    assert all(each.name.at.x == NAMES_LEFT for each in layout.courses)


@pytest.mark.parametrize("path", ALONE, ids=lambda path: path.stem)
def test_the_examples_read_well(path):
    result = found(path.read_text(), ("H100", "H200", "L40S", "A100-80GB", "B200", "L4"))
    courses = [course(choice, n) for n, choice in enumerate(result.selection.choices)]
    layout = throughput_layout(courses, result.question.slo)

    assert overlapping(layout.labels) == []
    assert [label.lines for label in layout.labels if not FRAME.holds(label.box)] == []


def test_of_promises_with_one_limit_only_the_strictest_is_drawn():
    slo = Slo(
        tpot=(
            Promise(quantile=0.5, limit_s=0.05),
            Promise(quantile=0.99, limit_s=0.05),
            Promise(quantile=0.5, limit_s=0.02),
        )
    )
    layout = throughput_layout([a_course("A", 1, [0.01, 0.1])], slo)

    assert [limit.label.lines for limit in layout.limits] == [
        ("SLO p50 20.0 ms",),
        ("SLO p99 50.0 ms",),
    ]


@pytest.mark.parametrize(
    ("low", "high", "values"),
    [
        (0.008, 0.12, [0.01, 0.02, 0.05, 0.1]),
        (0.04, 0.09, [0.04, 0.05, 0.06, 0.08]),
        (0.001, 10.0, [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10]),
    ],
)
def test_ticks_are_round_and_as_many_as_there_is_room_for(low, high, values):
    axis = LogAxis(low=low, high=high, start=0, end=576)

    assert tick_values(axis, gap=52) == pytest.approx(values)
