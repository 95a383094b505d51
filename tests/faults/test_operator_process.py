"""The operator as a process of the tests: no end of its own goes unseen."""

from http_double import a_kubeconfig
from operator_process import an_operator

AWAY = {"kubeconfig": a_kubeconfig("http://127.0.0.1:9"), "namespaces": ()}
"""For this API server it waits."""


def test_that_it_ended_by_itself_is_noted_before_it_is_started_again_or_killed(tmp_path):
    with an_operator(tmp_path, name="operator", tickS=-1, **AWAY) as made:
        made.process.wait(60)

        assert made.revive()
        assert len(made.codes) == 1
        made.process.wait(60)

    assert len(made.codes) == 2
    assert "settings.tickS" in made.log()


def test_what_a_test_ends_has_not_ended_by_itself(tmp_path):
    with an_operator(tmp_path, name="operator", **AWAY) as made:
        made.kill()

        assert not made.revive()

    assert (made.num_starts, made.codes) == (1, [])
