"""What the pod runner is told to run for an image."""

import sys
from pathlib import Path

import pytest

from tonnage_lab import site
from tonnage_lab.runner.config import RunnerConfig
from tonnage_lab.runner.environment import command_line
from tonnage_lab.site import GpuNode, SiteConfig

EARLIER = Path("/earlier/bin/python")


@pytest.mark.parametrize(
    ("tag", "python"),
    [("earlier", str(EARLIER)), ("lab", sys.executable), ("earliest", sys.executable)],
)
def test_a_tag_of_the_operators_image_may_stand_for_another_version(tmp_path, tag, python):
    nodes = (GpuNode(name="a", product="NVIDIA-H200", num_gpus=8),)
    config = SiteConfig(nodes=nodes, operators={"earlier": EARLIER})
    engine = site._emulator(tmp_path, {})
    written = RunnerConfig.model_validate(site._runner_config(tmp_path, engine, config))

    image = written.image_for(f"registry.test/tonnage/operator:{tag}")

    assert image.command == [python, "-m", "tonnage"]
    assert image.probe_period_scale == 1  # a busy machine does not end it by its own liveness
    assert written.image_for("vllm/vllm-openai:v0.33.0").probe_period_scale == 0.1
    assert image.programs == {"tonnage": [python, "-m", "tonnage"]}


@pytest.mark.parametrize("command", [["vllm", "serve"], None])
def test_an_engine_is_started_by_its_command_and_by_its_image_alike(tmp_path, command):
    config = SiteConfig(nodes=(GpuNode(name="a", product="NVIDIA-H200", num_gpus=8),))
    engine = site._emulator(tmp_path, {})
    written = RunnerConfig.model_validate(site._runner_config(tmp_path, engine, config))
    image = written.image_for("vllm/vllm-openai:v0.33.0")
    container = {"args": ["org/model", "--dtype", "bfloat16"], "command": command}

    started = command_line(container, {}, entrypoint=image.command, programs=image.programs)

    python, *words = started
    assert python == sys.executable
    assert words == [
        "-m", "tonnage_lab.emulator", "serve", "org/model", "--dtype", "bfloat16",
    ]  # fmt: skip
