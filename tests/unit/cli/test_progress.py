"""What is said while a search takes long, and of an engine model that is not compiled."""

import pytest

from cli_builders import llama, run
from tonnage.cli.commands import output_files
from tonnage.cli.commands import output_files as patience
from tonnage.cli.commands.output_files import UNCOMPILED, Progress


@pytest.fixture
def said():
    return []


def a_search(said, seconds, **known):
    """Call what is called before each run, at these times; the first is when it is made."""
    times = iter(seconds)
    known = {"is_compiled": False} | known
    progress = Progress(said.append, clock=lambda: next(times), **known)
    on_search = progress.counting()
    for _ in seconds[1:]:
        on_search()


class TestAnUncompiledEngineModel:
    def test_is_said_once_before_the_first_word_on_progress(self, said):
        a_search(said, [0, 1, 3, 9])

        assert said == [
            UNCOMPILED,
            "Searching for goodput: 1 run of the engine model so far",
            "Searching for goodput: 2 runs of the engine model so far",
        ]

    def test_is_not_said_of_a_quick_search_into_a_file(self, said):
        a_search(said, [0, 0.1, 1.9])

        assert said == []

    def test_is_not_said_of_a_compiled_one(self, said):
        a_search(said, [0, 0.1, 3], is_compiled=True)

        assert said == ["Searching for goodput: 1 run of the engine model so far"]


@pytest.mark.parametrize(("is_compiled", "words"), [(True, []), (False, [UNCOMPILED])])
def test_a_search_into_a_file_does_not_say_how_far_it_is(said, is_compiled, words):
    a_search(said, [0, 1, 3, 9], is_compiled=is_compiled, is_terminal=False)

    assert said == words


def test_reading_that_takes_long_says_how_far_it_is_ever_more_seldom(said):
    times = iter([0, 1.9, 2.0, 4.9, 5.1])
    progress = Progress(said.append, clock=lambda: next(times), is_compiled=False)

    told = progress.reading("t.csv")
    for number in (1, 2_000, 3_000, 4_000):
        told(number, "row")

    assert said == ["Reading t.csv: 2,000 rows so far", "Reading t.csv: 4,000 rows so far"]


@pytest.mark.parametrize(
    ("file", "is_compiled"),
    [("engine/schedule.cpython-311-x86_64-linux-gnu.so", True), ("engine/schedule.py", False)],
)
def test_an_extension_module_is_compiled(monkeypatch, file, is_compiled):
    monkeypatch.setattr(patience.schedule, "__file__", file)

    assert patience.is_compiled() is is_compiled


@pytest.mark.parametrize("command", ["plan", "compare"])
def test_a_command_that_takes_long_says_it_once_on_standard_error(monkeypatch, command):
    monkeypatch.setattr(output_files, "is_compiled", lambda: False)
    monkeypatch.setattr(patience, "PATIENCE_S", 0)
    unseen = llama(("{mean: 4000, p99: 7000}", "{mean: 3100, p99: 7000}"))  # nothing remembers it
    only = ["--gpu", "H200"] if command == "compare" else []

    result = run(command, "-f", "-", *only, text=unseen)

    assert result.exit_code == 0
    assert result.stderr.count(UNCOMPILED) == 1
    assert UNCOMPILED not in result.stdout
