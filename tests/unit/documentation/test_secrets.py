"""Secrets that an example names are made by a command above the one that applies it."""

import pytest
import yaml

from doc_blocks import ROOT, SITE, blocks, commands

TUTORIAL = sorted((SITE / "pages/tutorial").glob("*.md"))


def secrets_in(value):
    """Yield the names of the Secrets that a spec takes something from."""
    if isinstance(value, list):
        for each in value:
            yield from secrets_in(each)
    if isinstance(value, dict):
        for key, each in value.items():
            if isinstance(each, dict) and key.endswith(("Secret", "secretKeyRef")):
                yield each["name"]
            yield from secrets_in(each)
        yield from (each["name"] for each in value.get("imagePullSecrets", ()))


def missing_in(page):
    """Yield the Secrets that are not there when an example is applied, with the example."""
    made = set()
    for words in (words for block in blocks(page) for words in commands(block)):
        if words[:3] == ["kubectl", "create", "secret"]:
            made.add(words[4])
        if words[:2] == ["kubectl", "apply"]:
            for example in (ROOT / word for word in words if word.startswith("deploy/examples/")):
                for manifest in yaml.safe_load_all(example.read_text()):
                    yield from (
                        (each, example.name) for each in secrets_in(manifest) if each not in made
                    )


@pytest.mark.parametrize("page", TUTORIAL, ids=lambda page: page.stem)
def test_each_is_made_before_it_is_needed(page):
    assert list(missing_in(page)) == []


def test_one_that_nothing_makes_is_found():
    page = SITE / "pages/tutorial/gpu-cluster.md"
    example = ROOT / "deploy/examples/llama-3.3-70b-h200.yaml"

    assert "kubectl create secret generic hugging-face" in page.read_text()
    assert list(secrets_in(yaml.safe_load(example.read_text()))) == ["hugging-face"]
