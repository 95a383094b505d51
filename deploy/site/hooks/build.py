"""Hooks of mkdocs: the events of a build, and what is done at each."""

import os
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from reference import PAGES
from repository import ROOT, relinked, taken_pages
from shown import with_outputs, with_pictures


def on_pre_build(config: MkDocsConfig) -> None:
    """Let commands of pages find their files as a reader in a checkout does."""
    del config
    os.chdir(ROOT)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for each in taken_pages(config):
        files.append(each)
    for page, written in PAGES.items():
        files.append(File.generated(config, page, content=written()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return with_outputs(relinked(markdown, page.file, files, config))


def on_page_content(html: str, **_: Any) -> str:
    return with_pictures(html)
