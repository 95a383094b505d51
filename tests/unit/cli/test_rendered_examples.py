"""What is rendered for each example is valid in every Kubernetes that is served."""

import kubernetes_validate
import pytest

from rendered import EXAMPLES, children
from schemas import SERVED


def test_there_are_schemas_from_the_oldest_version_served_to_the_newest():
    assert SERVED == ["1.30", "1.31", "1.32", "1.33", "1.34", "1.35", "1.36", "1.37"]


def test_only_a_scale_target_has_no_children():
    assert [path.stem for path in EXAMPLES if not children(path)] == ["scale-target"]


OLDEST, *BETWEEN, NEWEST = SERVED
SAMPLED = [OLDEST, NEWEST, *(pytest.param(each, marks=pytest.mark.thorough) for each in BETWEEN)]


@pytest.mark.parametrize("version", SAMPLED)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_children_are_valid(path, version):
    for manifest in children(path):
        kubernetes_validate.validate(manifest, version, strict=True)
