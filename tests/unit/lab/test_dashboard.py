"""The dashboard as a picture: every panel asks its own queries, and what it cannot ask it says."""

import json
import re

import pytest

from http_double import json_reply, serving
from tonnage_lab.dashboard import Stretch, chart_dashboard, draw_dashboard, expression
from tonnage_lab.processes import LabError

STRETCH = Stretch(from_s=1000.0, to_s=1060.0, step_s=30.0)
PNG = b"\x89PNG"


def result(*series):
    return json_reply(
        {"status": "success", "data": {"resultType": "matrix", "result": list(series)}}
    )


def a_series(**labels):
    return {"metric": labels, "values": [[1000, "1"], [1030, "2"], [1060, "NaN"]]}


def test_every_query_of_the_dashboard_is_asked_for_the_stretch(tmp_path):
    path = tmp_path / "dashboard.png"
    with serving(lambda _: result(a_series(namespace="serving", name="llama"))) as server:
        draw_dashboard(path, server.url, STRETCH)

    targets = [each for panel in chart_dashboard()["panels"] for each in panel["targets"]]
    assert [each.query["query"] for each in server.asked] == [
        expression(each["expr"]) for each in targets
    ]
    assert {(each.query["start"], each.query["end"]) for each in server.asked} == {
        ("1000.000", "1060.000")
    }
    asked = json.dumps([each.query for each in server.asked])
    assert set(re.findall(r"\$\w*", asked)) == {"$1"}  # a group of label_replace, no variable
    assert path.read_bytes().startswith(PNG)


def test_a_panel_without_data_is_drawn_empty(tmp_path):
    path = tmp_path / "dashboard.png"
    with serving(lambda _: result()) as server:
        draw_dashboard(path, server.url, STRETCH)

    assert path.read_bytes().startswith(PNG)


def test_a_query_that_is_refused_is_named_with_its_panel(tmp_path):
    with (
        serving(lambda _: json_reply({"error": "parse error"}, status=400)) as server,
        pytest.raises(
            LabError, match=r"panel Replicas: tonnage_replicas_ready.* answered 400: parse error"
        ),
    ):
        draw_dashboard(tmp_path / "dashboard.png", server.url, STRETCH)
