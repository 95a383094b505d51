"""Which cluster the demo takes by itself."""

from tonnage_lab.kind import site as kind_site


def test_it_is_kind_where_docker_answers_and_the_images_are_at_hand(lane, monkeypatch):
    for name, value in lane.docker.environment.items():
        monkeypatch.setenv(name, value)

    assert kind_site.suits_by_itself()


def test_it_is_not_where_docker_does_not_answer(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")

    assert not kind_site.suits_by_itself()
