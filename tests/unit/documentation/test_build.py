"""The documentation site builds without a warning, its links resolve, and it works offline."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from doc_blocks import ROOT, SITE
from tonnage.api.crd import crd
from tonnage.cli.commands.app import COMMANDS
from tonnage.control.report.reasons import CONDITIONS, REASONS
from tonnage.control.series import FAMILIES
from tonnage.settings import Settings

CONFIGURATION = SITE / "mkdocs.yml"
LOADED = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src")}


class Tags(HTMLParser):
    """The ids of a page, what it links to, and what a reader's browser loads with it."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loaded = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for key, value in attrs:
            if key in {"id", "name"}:
                self.ids.add(value)
            if (tag, key) == ("a", "href"):
                self.links.append(value)
            if (tag, key) in LOADED:
                self.loaded.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site; a warning of mkdocs ends the build."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", CONFIGURATION, "-d", folder],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": _path()},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert "WARNING" not in done.stderr
    return folder


def _path():
    return ":".join(filter(None, [str(ROOT / "operator"), os.environ.get("PYTHONPATH")]))


@pytest.fixture(scope="module")
def pages(site):
    found = {path: Tags(path.read_text()) for path in sorted(site.rglob("*.html"))}
    found.pop(site / "404.html")  # shown at any address, so its links begin at the root
    return found


def text_of(site, page):
    return re.sub(r"<[^>]+>", "", (site / page).read_text())


def test_every_link_within_the_site_leads_somewhere(site, pages):
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            has_anchor = not parts.fragment or target.suffix != ".html"
            if not target.exists() or not (
                has_anchor or unquote(parts.fragment) in pages[target].ids
            ):
                broken.append(f"{path.relative_to(site)}: {link}")

    assert broken == []


def test_nothing_is_loaded_from_another_host(pages):
    loaded = {each for page in pages.values() for each in page.loaded if urlsplit(each).netloc}

    assert loaded == set()


def test_no_style_loads_from_another_host(site):
    for path in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", path.read_text())


def test_the_reference_has_every_name(site):
    spec = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    named = {
        "fields": spec["properties"],
        "settings": [field.alias for field in Settings.model_fields.values()],
        "reasons": REASONS | CONDITIONS.keys(),
        "metrics": FAMILIES,
    }
    for page, names in named.items():
        shown = set(re.findall(r"[\w]+", text_of(site, f"reference/{page}.html")))
        assert {
            each for each in names if each not in shown and f"{each}_total" not in shown
        } == set()
    for name in COMMANDS:
        assert f"tonnage {name}" in text_of(site, "reference/command-line.html")


def test_the_reference_has_every_alert_of_the_chart_in_words(site):
    rules = (ROOT / "charts/tonnage/templates/prometheusrule.yaml").read_text()
    text = text_of(site, "reference/metrics.html").partition("prometheusRule")[2]

    alerts = re.findall(r"- alert: (\w+)", rules)
    assert len(alerts) > 5
    assert all(each in text for each in alerts)
    assert "{{" not in text
    counted = r"\b(\d+|five|six|seven|eight|nine|ten|eleven|twelve) alerts"
    assert re.search(counted, text_of(site, "how-to/alerts.html")) is None


def test_every_decision_is_a_page(site):
    decisions = {path.stem for path in Path(ROOT / "operator/decisions").glob("[!R]*.md")}

    assert {path.stem for path in (site / "design/decisions").glob("*.html")} == decisions
