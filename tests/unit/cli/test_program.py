"""The program as a whole: help, version, unexpected errors, the lab and the operator."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cli_builders import run
from doc_blocks import ROOT
from tonnage.cli.commands.app import COMMANDS, program
from tonnage.cli.console import Failure
from tonnage_lab.command import LabFailure, lab, lab_errors
from tonnage_lab.processes import LabError


def test_a_command_that_cannot_be_imported_leaves_garbage_to_be_collected(monkeypatch):
    def fails(_):
        raise ImportError("no such module")

    monkeypatch.setattr("importlib.import_module", fails)
    with pytest.raises(ImportError):
        program.get_command(click.Context(program), "plan")

    assert gc.isenabled()


def test_help_lists_every_command_and_every_exit_code():
    result = run("--help")

    assert result.exit_code == 0
    for command in COMMANDS:
        assert f"\n  {command} " in result.stdout
    for code in range(8):
        assert f"\n    {code}  " in result.stdout


@pytest.mark.parametrize(
    "command",
    [
        *([name] for name in COMMANDS),
    ],
    ids=" ".join,
)
def test_every_command_has_help(command):
    result = run(*command, "--help")

    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: program {' '.join(command)}")


def test_no_help_is_wider_than_a_narrow_screen():
    for words in ((), *(words for words, _ in commands_of(program))):
        text = run(*words, "--help", COLUMNS="80").stdout

        assert text
        assert [line for line in text.splitlines() if len(line) > 80] == [], words


def commands_of(group, path=()):
    """Yield every command with its words, those of groups too."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands_of(command, (*path, name))
        else:
            yield (*path, name), command


def test_o_is_the_format_of_what_is_printed_in_every_command():
    options = {
        words: option
        for words, command in commands_of(program)
        for option in command.params
        if "-o" in option.opts
    }

    assert len(options) == 7  # plan, compare, render, diff, replay, catalog's
    for words, option in options.items():
        assert option.opts == ["-o", "--format"], words
        assert {"json"} < set(option.type.choices), words


def test_a_file_is_no_format():
    result = run("diagnose", "-o", "found.json", "--model", "m", "--gpu", "H100")

    assert result.exit_code == 3
    assert "-o" in result.stderr


@pytest.mark.parametrize("command", ["plan", "replay", "explain", "catalog", "crd", "run"])
def test_help_has_examples(command):
    text = run(command, "--help").stdout

    assert f"    tonnage {command}" in text


def test_the_plugin_of_kubectl_offers_what_one_asks_of_a_cluster():
    result = CliRunner().invoke(program, ["--help"], prog_name="kubectl tonnage")

    assert result.stdout.startswith("Usage: kubectl tonnage [OPTIONS] COMMAND")
    for command in ("plan", "explain", "diagnose", "approve"):
        assert f"\n  {command} " in result.stdout


def completed(entry, variable, words):
    """What the program proposes for the last of these words."""
    script = f"import sys; sys.argv[:] = ['x']; from tonnage.cli import {entry}; {entry}()"
    asked = {variable: "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "1"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=False, env=dict(os.environ) | asked
    )
    return done.stdout.split()


def test_the_program_completes_its_commands():
    assert completed("main", "_TONNAGE_COMPLETE", "tonnage re") == [
        "plain,render",
        "plain,replay",
    ]


def test_the_plugin_completes_its_own():
    assert completed("kubectl", "_KUBECTL_TONNAGE_COMPLETE", "kubectl-tonnage ex") == [
        "plain,explain"
    ]


def test_the_script_for_kubectl_asks_the_plugin():
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(  # noqa: S603
        [ROOT / "deploy/kubectl_complete-tonnage", "ex"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PATH": programs},
    )

    assert done.stdout == "explain\n:4\n"


def test_version_is_that_of_the_package():
    result = run("--version")

    assert result.stdout == "tonnage 0.2.0\n"


def test_an_unknown_command_is_an_error():
    assert run("plam").exit_code == 3


def program_with(body, *arguments):
    """Run the program in a process of its own, with this as its ``crd`` command."""
    script = (
        "import sys, types, click\n"
        "from tonnage.cli import main\n"
        f"@click.command()\ndef crd():\n    {body}\n"
        "sys.modules['tonnage.cli.commands.crd'] = types.SimpleNamespace(crd=crd)\n"
        "main()\n"
    )
    command = [sys.executable, "-c", script, "crd", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603


def test_an_unexpected_error_is_one_line_and_exit_code_1():
    done = program_with("raise KeyError('broken')")

    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("Error: unexpected KeyError: 'broken'. ")


def test_a_traceback_is_there_for_those_who_ask():
    done = program_with("raise KeyError('broken')", "--traceback")

    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):")


def test_the_module_runs():
    command = [sys.executable, "-m", "tonnage", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603

    assert done.stdout == "tonnage 0.2.0\n"


def test_a_missing_extra_says_how_to_install_it():
    with (
        pytest.raises(Failure, match=r"needs trustme.*pip install -e '\.\[lab\]'"),
        lab_errors(),
    ):
        raise ModuleNotFoundError(name="trustme")


def test_a_module_of_ours_that_is_missing_is_our_fault():
    with pytest.raises(ModuleNotFoundError), lab_errors():
        raise ModuleNotFoundError(name="tonnage_lab.nowhere")


def test_what_the_lab_cannot_do_keeps_the_lines_of_its_logs():
    with pytest.raises(LabFailure) as failure, lab_errors():
        raise LabError("etcd ended:\n  no space left")

    assert isinstance(failure.value, click.ClickException)
    assert failure.value.message == "etcd ended:\n  no space left"


def test_a_lab_that_does_not_run_is_said_to_be_none(tmp_path):
    for command in ("status", "down"):
        result = CliRunner().invoke(lab, [command, "--folder", str(tmp_path)])

        assert result.exit_code == 3
        assert "lab" in result.stderr


def test_run_needs_a_settings_file(tmp_path):
    result = run("run", "--config", tmp_path / "none.yaml")

    assert result.exit_code == 3
    assert "does not exist" in result.stderr
