"""``tonnage compare``: the ranking, its forms, its refusals and its exit codes."""

import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from cli_builders import (
    CONFIG_JSON,
    CONFIGURED,
    LLAMA,
    SCALED,
    a_comparison,
    a_config_map,
    a_deployment,
    run,
)
from cli_builders import llama as manifest
from tonnage.catalog.gpu import Price, built_in_gpus
from tonnage.cli.commands.plan_options import named_classes
from tonnage.cli.console import Failure
from tonnage.cli.results.comparing import compare_classes
from tonnage.cli.text import compare as text_of_compare
from tonnage.cli.text.compare import comparison_report, notes
from tonnage.units import GIB

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "deploy" / "examples"
GPUS = built_in_gpus()
FOUR = "H100,H200,L4,H20"
TOO_SLOW = manifest(("p95: 50ms", "p95: 5ms"))


def compare(*texts, options=(), **more):
    """Run ``tonnage compare -f -`` on these documents."""
    return run("compare", "-f", "-", *options, text="---\n".join(texts), **more)


def as_json(*texts, options=()):
    return json.loads(compare(*texts, options=["-o", "json", *options]).stdout)


def printed(compared_classes, columns):
    console = Console(file=io.StringIO(), width=columns, color_system=None)
    for part in comparison_report(compared_classes, console):
        console.print(part)
    return console.file.getvalue()


class TestTheAnswer:
    def test_ranks_the_classes_by_what_the_demand_costs(self):
        answer = as_json(LLAMA, options=["--gpu", FOUR])
        usd = [each["estimate"].get("usdPerHour") for each in answer["classes"]]
        priced = [each for each in usd if each is not None]

        assert [each["rank"] for each in answer["classes"]] == list(range(1, len(usd) + 1))
        assert priced == sorted(priced)
        assert usd == [*priced, *[None] * (len(usd) - len(priced))]
        assert answer["classes"][-1]["gpu"] == "H20"  # no public rent is known

    def test_stands_in_the_same_order_in_the_text(self):
        answer = as_json(LLAMA, options=["--gpu", FOUR])
        text = compare(LLAMA, options=["--gpu", FOUR], COLUMNS="120").stdout
        rows = re.findall(r"^ +([0-9]+) +([A-Z0-9-]+) +[TPD]", text, re.MULTILINE)

        assert rows == [(str(each["rank"]), each["gpu"]) for each in answer["classes"]]
        assert text.splitlines()[1].startswith(f"{answer['classes'][0]['gpu']} costs least: ")

    def test_has_a_line_of_who_costs_many_times_the_first_and_no_row(self, monkeypatch):
        monkeypatch.setattr(text_of_compare, "FAR", 2)
        first, *others = as_json(LLAMA)["classes"]
        most = 2 * first["estimate"]["usdPerHour"]
        far = [each["gpu"] for each in others if each["estimate"]["usdPerHour"] > most]

        shown = compare(LLAMA, COLUMNS="120").stdout
        ranked = re.findall(r"^ +[0-9]+ +([A-Z0-9-]+) +[TPD]", shown, re.MULTILINE)

        assert far
        assert ranked == [each["gpu"] for each in [first, *others] if each["gpu"] not in far]
        assert f"more than 2 times the cost of {first['gpu']}: {far[0]} " in shown

    def test_without_a_demand_has_a_line_by_what_a_token_costs(self, monkeypatch):
        monkeypatch.setattr(text_of_compare, "FAR", 2)
        asked = ["--model", "Qwen/Qwen3-8B", "--prompt", "1000", "--output", "200"]
        found = json.loads(run("compare", *asked, "-o", "json").stdout)["classes"]
        usd = {each["gpu"]: each["estimate"]["usdPerMillionTokens"] for each in found}
        cheapest = usd[found[0]["gpu"]]
        far = [name for name, each in usd.items() if each > 2 * cheapest]

        shown = run("compare", *asked, COLUMNS="120").stdout
        ranked = re.findall(r"^ +[0-9]+ +([A-Z0-9-]+) +[TPD]", shown, re.MULTILINE)

        assert far
        assert ranked == [name for name in usd if name not in far]

    def test_holds_for_each_class_what_status_and_batches_hold(self):
        (first, *_) = as_json(LLAMA, options=["--gpu", "H200"])["classes"]

        assert set(first) == {
            "rank", "gpu", "gpus", "atDemand", "atCapacity", "plan", "estimate",
            "tokensPerSecondPerGpu", "withinMaxReplicas", "batches",
        }  # fmt: skip
        assert first["gpus"] == first["plan"]["replicas"] * first["plan"]["gpusPerReplica"]
        assert first["estimate"]["usdPerHour"] == pytest.approx(
            first["gpus"] * 63.296 / 8, rel=1e-3
        )
        assert [each["isLoadLine"] for each in first["batches"]].count(True) == 1
        for batch in first["batches"]:
            assert batch["tokensPerSecond"] == pytest.approx(
                batch["tokensPerSecondPerGpu"] * first["plan"]["gpusPerReplica"], rel=1e-3
            )
            assert batch["boundBy"] in {"memory", "compute", "prefill", "overhead", "links"}

    def test_is_the_same_in_yaml(self):
        text = compare(LLAMA, options=["-o", "yaml", "--gpu", FOUR]).stdout

        assert yaml.safe_load(text) == as_json(LLAMA, options=["--gpu", FOUR])

    def test_covers_all_classes_where_none_is_named(self):
        answer = as_json(TOO_SLOW)
        names = [
            each["gpu"] for each in (*answer["classes"], *answer["leftOut"], *answer["refused"])
        ]

        assert sorted(names) == sorted(GPUS)

    def test_leaves_out_what_has_no_price_where_another_class_serves(self):
        found = a_comparison(names=("H200", "H100", "L40"), are_named=False)
        without = a_comparison(names=("H200", "H100"), are_named=False, price=Price())
        small = replace(GPUS["H100"], memory_bytes=60 * GIB, gpus_per_node=1)
        large = replace(GPUS["GH200"], price=Price())
        over_nodes = compare_classes(
            found.deployment, found.request, [small, large], is_written=False, are_named=False
        )

        assert {each.gpu.name for each in found.selection.choices} == {"H200", "H100"}
        assert found.left_out == {"L40": {"reason": "NoPrice"}}
        assert "excluded, for want of a price: L40; --gpu NAME shows one" in list(notes(found))
        assert {each.gpu.name for each in without.selection.choices} == {"H200", "H100"}
        assert [each.gpu.name for each in over_nodes.selection.choices] == ["GH200"]
        assert over_nodes.left_out == {"H100": {"reason": "SeveralNodes"}}

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
        printed = " ".join(compare(text, options=["--gpu", "H100"]).stdout.split())
        needed = choice["plan"]["replicas"]
        assert (
            "* ignores maxReplicas 1, so that classes can be compared: H100 (needs "
            f"{needed})" in printed
        )
        assert f"maxReplicas: {needed}" in printed  # to write
        assert "; maxReplicas 1 must be raised for it" in printed

    def test_says_which_classes_only_a_measurement_can_tell_apart(self, tmp_path):
        source = (ROOT / "operator/tonnage/catalog/gpus/h200.toml").read_text()
        twin = source.replace('name = "H200"', 'name = "TWIN"').replace("= 63.296", "= 64.00")
        (tmp_path / "twin.toml").write_text(twin)
        text = compare(LLAMA, options=["--gpus", tmp_path, "--gpu", "H200,TWIN"]).stdout

        assert "H200, TWIN: within the model error" in text

    def test_without_any_price_is_by_number_of_gpus(self):
        result = a_comparison(price=Price())
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
        per_s = first["estimate"]["tokensPerSecond"]

        assert answer["mode"] == "offline"
        assert first["plan"]["replicas"] == pytest.approx(11_574 / per_s, abs=1)
        assert first["plan"]["limitedBy"] == "KVCache"

    def test_has_no_ttft_target(self):
        text = compare(self.TEXT, options=["--gpu", "H100"], COLUMNS="120").stdout

        assert "offline, at the memory ceiling" in text
        assert "TTFT " not in text.partition("1. H100")[2]


class TestOwnedGpus:
    def test_cost_their_price_over_their_life_their_power_and_their_upkeep(self, tmp_path):
        source = (ROOT / "operator/tonnage/catalog/gpus/h100.toml").read_text()
        owned = (
            "purchase_usd = 30_000\namortization_hours = 30_000\npower_usd_per_kwh = 0.2\n"
            "upkeep_usd_per_hour = 0.36\n"
        )
        (tmp_path / "h100.toml").write_text(source.replace("purchase_usd = 30_000\n", owned))
        (choice,) = as_json(LLAMA, options=["--gpus", tmp_path, "--gpu", "H100"])["classes"]
        cost = choice["atDemand"]["cost"]
        text = " ".join(
            compare(LLAMA, options=["--gpus", tmp_path, "--gpu", "H100"]).stdout.split()
        )

        # 30,000 / 30,000 + 0.7 kW * 0.2 + 0.36
        assert (cost["price"]["basis"], cost["perGpuHour"]) == ("owned", 1.5)
        assert cost["perHour"] == pytest.approx(1.5 * choice["gpus"])
        assert "30,000 USD / 30,000 h + 700 W at 0.200 USD/kWh + 0.36 USD upkeep" in text

    def test_with_half_a_price_are_refused_in_one_line(self, tmp_path):
        source = (ROOT / "operator/tonnage/catalog/gpus/h200.toml").read_text()
        half = f"{source}\n[price]\namortization_hours = 30_000\n"
        (tmp_path / "h200.toml").write_text(half)
        result = compare(LLAMA, options=["--gpus", tmp_path])

        assert result.exit_code == 3
        assert "GPU class file h200.toml" in result.stderr
        assert "price.amortization_hours needs price.purchase_usd" in result.stderr
        assert result.stderr.count("\n") == 1


def test_the_ways_out_and_the_plans_with_them_agree_with_it_to_the_cent():
    text = manifest(
        ("weights: fp8", "weights: bfloat16"),
        ("H200\n    gpusPerReplica: 2", "H100\n    gpusPerReplica: 1"),
        ("maxReplicas: 8", "maxReplicas: 2"),
    )
    (no,) = json.loads(run("plan", "-f", "-", "-o", "json", text=text).stdout)
    others = [each for each in no["offers"] if each["changes"][0].startswith("hardware.gpu: ")][:3]
    names = [each["gpu"] for each in others]
    classes = as_json(text, options=["--gpu", ",".join(names)])["classes"]
    compared = {each["gpu"]: each["atDemand"]["cost"]["perHour"] for each in classes}
    planned = {}
    for each in others:
        settings = [word for change in each["changes"] for word in ("--set", change)]
        settings = [word.replace(": ", "=") for word in settings]
        (plan,) = json.loads(run("plan", "-f", "-", *settings, "-o", "json", text=text).stdout)
        planned[each["gpu"]] = plan["atDemand"]["cost"]["perHour"]

    assert {each["gpu"]: each["cost"]["perHour"] for each in others} == compared == planned
    assert any(not each["withinMaxReplicas"] for each in classes)


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_no_line_is_wider_than_the_screen(columns):
    for text in (LLAMA, TOO_SLOW, TestOffline.TEXT):
        result = compare(text, options=["--gpu", f"{FOUR},V100-PCIe-16GB"], COLUMNS=str(columns))
        lines = result.stdout.splitlines()

        assert max(map(len, lines)) <= columns
        assert "…" not in "".join(lines)
        assert [line for line in lines if line != line.rstrip()] == []


def test_a_narrow_screen_has_one_table_too_and_names_what_is_not_in_it():
    texts = {
        columns: compare(LLAMA, options=["--gpu", FOUR], COLUMNS=str(columns)).stdout
        for columns in (80, 120)
    }
    heads = {
        columns: [line for line in text.splitlines() if line.split()[:2] == ["#", "class"]]
        for columns, text in texts.items()
    }

    assert [len(each) for each in heads.values()] == [1, 1]
    assert "bound by" in heads[120][0]
    assert "not shown in 80 columns: TPOT, tokens/s GPU, bound by" in texts[80]
    assert "not shown" not in texts[120]


class TestBothWaysToPay:
    @pytest.mark.parametrize("rate", ["0.5", "1", "4"])
    def test_what_costs_least_by_the_other_way_is_first_where_that_way_is_paid(self, rate):
        text = manifest(("PerSecond: 4", f'PerSecond: "{rate}"'))
        asked = ["--gpu", "H100,H200,A100-80GB,A100-40GB"]
        shared, whole = (
            as_json(text, options=asked),
            as_json(text, options=[*asked, "--whole-nodes"]),
        )

        for one, other in ((shared, whole), (whole, shared)):
            first = other["classes"][0]
            least = one["paidOtherwise"] or one["classes"][0]
            cost = (least.get("atDemand") or least)["cost"]
            assert least["gpu"] == first["gpu"]
            assert cost["perHourWhole"] == first["atDemand"]["cost"]["perHourWhole"]
            assert cost["perHourShared"] == first["atDemand"]["cost"]["perHourShared"]

    def test_the_first_line_has_what_costs_least_by_the_other_way_and_what_runs_then(self):
        # Two of eight H200 are 15.82 USD, the whole instance is 63.30; eight A100 are 27.45.
        text = manifest(("PerSecond: 4", 'PerSecond: "0.5"'))
        shown = " ".join(printed(a_comparison(text, names=("H200", "A100-80GB")), 120).split())

        assert (
            "; in whole instances A100-80GB costs least, 27.45: 1 replica of 8 GPUs (TP8)" in shown
        )

    def test_without_a_demand_no_hours_are_compared(self):
        text = manifest(("    requestsPerSecond: 4\n", ""))
        found = a_comparison(text, names=("H200", "A100-80GB"))

        assert found.selection.choices[0].bill.usd_per_hour_whole > 27.45
        assert found.otherwise is None


TEN = ("H100", "H200", "H20", "B200", "B300", "A100-80GB", "L40S", "L4", "GH200", "RTX-PRO-6000")
"""As if the catalogue had no others: each class is a search of a second."""


def test_all_classes_are_ranked_and_the_cheapest_and_the_own_one_are_in_full():
    text = printed(a_comparison(names=TEN, are_named=False), 120)
    in_full = re.findall(r"spec.hardware: {gpu: ([^,]+),", text)

    assert 3 <= len(in_full) <= 4
    assert "H200" in in_full
    assert "--gpu NAME,NAME shows others" in text


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
            ((LLAMA,), ["--gpu", "H100,X1"], "--gpu 'X1' is not in the catalogue; known: A10"),
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

        assert result.exit_code == 3
        assert expected in " ".join(result.stderr.split())
        assert result.stdout == ""

    def test_takes_names_and_aliases_each_once(self):
        names = named_classes(("H100, H200", "H100-SXM"), GPUS)

        assert [gpu.name for gpu in names] == ["H100", "H200"]
        with pytest.raises(Failure, match="--gpu 'X1'"):
            named_classes(("X1",), GPUS)

    def test_asks_for_another_demand(self):
        few, many = (
            as_json(LLAMA, options=["--gpu", "H100", "--requests-per-second", rate])["classes"][0]
            for rate in ("0.1", "40")
        )

        assert few["plan"]["replicas"] == 1
        assert many["atDemand"]["requestsPerSecond"] == 40
        assert many["gpus"] > few["gpus"]

    def test_takes_a_model_that_the_catalogue_lacks(self, tmp_path):
        path = tmp_path / "config.json"
        path.write_text(CONFIG_JSON)
        given_file = as_json(CONFIGURED, options=["--gpu", "H100", "--model-config", path])
        given_map = as_json(CONFIGURED, a_config_map(), options=["--gpu", "H100"])

        assert given_file["classes"] == given_map["classes"]

    def test_leaves_the_flags_of_a_scale_target_open_for_other_classes(self):
        answer = as_json(SCALED, a_deployment(), options=["--gpu", "H100"])

        assert answer["classes"][0]["plan"]["maxNumSeqs"] != 48

    @pytest.mark.parametrize(
        "name",
        [
            "llama-3.3-70b-h200",
            pytest.param("deepseek-v3-h200", marks=pytest.mark.thorough),
            "recommend",
        ],
    )
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


def test_prices_of_several_clouds_are_said_to_be_such():
    note = "prices of several clouds are compared"

    assert note in printed(a_comparison(names=("H100", "GH200")), 120)
    assert note not in printed(a_comparison(names=("H100", "H200")), 120)
