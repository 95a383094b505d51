"""``tonnage explain --glossary``: the terms, without a cluster."""

from cli_builders import run
from tonnage.explain.glossary import GLOSSARY


def test_prints_every_term_with_its_meaning_and_the_engines_name():
    result = run("explain", "--glossary")
    text = " ".join(result.stdout.split())

    assert result.exit_code == 0
    for name, meaning in GLOSSARY.items():
        assert f"{name} {meaning}" in text
    assert "vLLM: vllm:time_to_first_token_seconds" in text


def test_one_of_name_and_glossary_is_needed():
    neither, both = run("explain"), run("explain", "llama", "--glossary")

    assert neither.exit_code == both.exit_code == 3
    assert "give the NAME of a ModelDeployment, or --glossary" in neither.stderr
    assert "give NAME or --glossary, not both" in both.stderr


def test_help_says_where_it_is():
    assert "tonnage explain --glossary" in run("--help").stdout
    assert "tonnage explain --glossary" in run("explain", "--help").stdout


def test_names_of_the_engine_are_whole_on_a_narrow_screen():
    lines = run("explain", "--glossary", COLUMNS="60").stdout.splitlines()
    text = "".join(line.strip() for line in lines)

    assert max(map(len, lines)) <= 60
    assert "vllm:spec_decode_num_accepted_tokens_per_pos_total" in text
