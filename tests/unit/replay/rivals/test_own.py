"""Classes of one's own as policies: what is called, and what is said of those that are none."""

import sys

import pytest

from tonnage.replay.policy import UnknownPolicyError, policy_of, rule_of

RULES = """
class PerPod:
    interval_s, table = 15.0, {}

    def __init__(self, target=4.0):
        self.target = target

    def replicas(self, signals):
        return max(signals.told.min_replicas, signals.asked)


class Asleep(PerPod):
    interval_s = 0


class Asking(PerPod):
    table = {"running": "vllm:num_requests_running"}


class Empty:
    pass


class Needy(PerPod):
    def __init__(self, target):
        self.target = target


number = 4
"""


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    (tmp_path / "my_rules.py").write_text(RULES)
    (tmp_path / "my_broken.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_rules", None)


@pytest.mark.parametrize(("text", "target"), [("my_rules:PerPod", 4), ("my_rules:PerPod:8", 8)])
def test_a_class_is_called_with_the_number_after_it(text, target):
    policy = policy_of(text)

    assert str(policy) == text
    assert rule_of(policy).target == target
    assert rule_of(policy) is not rule_of(policy)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("nowhere:PerPod", "nowhere cannot be imported: .*No module named 'nowhere'"),
        ("my_broken:PerPod", "my_broken cannot be imported: ZeroDivisionError"),
        ("my_rules:Missing", "my_rules has no Missing"),
        ("my_rules:number", "my_rules has no class number"),
        ("my_rules:Empty", "my_rules:Empty is no policy: it has no interval_s, table, replicas"),
        ("my_rules:Asleep", "interval_s is 0, not seconds, at least 1"),
        ("my_rules:Asking", "table is not a mapping of names to Query"),
        ("my_rules:Needy", "my_rules:Needy cannot be called so: .*target"),
        ("my_rules:PerPod:many", "my_rules:PerPod:many is not a number above 0"),
        ("my-rules:PerPod", "MODULE:CLASS is your own"),
    ],
)
def test_a_class_that_is_no_policy_says_what_is_wrong(text, what):
    with pytest.raises(UnknownPolicyError, match=what):
        policy_of(text)
