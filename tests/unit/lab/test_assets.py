"""Which program the lab takes, and what makes it build again."""

from pathlib import Path

import pytest

import kubeconform
from tonnage_lab import assets
from tonnage_lab.assets import TOOLS, AssetPaths

GO = "go1.26.8 linux/amd64"


def a_program(path: Path, content: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(0o755)
    return path


def some_sources(folder: Path, version: str = "v1.2.3") -> Path:
    for module in ("controlplane", "kwok"):
        (folder / module).mkdir(parents=True, exist_ok=True)
        (folder / module / "go.mod").write_text(f"require example.com/{module} {version}\n")
        (folder / module / "go.sum").write_text("h1:\n")
    return folder


def some_paths(folder: Path, *, kubebuilder: Path | None = None) -> AssetPaths:
    return AssetPaths(
        sources=folder / "sources",
        programs=folder / "programs",
        scratch=folder / "scratch",
        kubebuilder=kubebuilder,
    )


def test_the_digest_names_the_sources_and_the_go_release(tmp_path: Path):
    sources = some_sources(tmp_path / "a")
    same_elsewhere = some_sources(tmp_path / "b")
    newer = some_sources(tmp_path / "c", version="v1.2.4")

    assert assets.digest(sources, GO) == assets.digest(same_elsewhere, GO)
    assert assets.digest(sources, GO) != assets.digest(newer, GO)
    assert assets.digest(sources, GO) != assets.digest(sources, "go1.27.0 linux/amd64")


def test_the_digest_sees_checksums_and_the_file_they_are_in(tmp_path: Path):
    sources = some_sources(tmp_path)
    before = assets.digest(sources, GO)
    (sources / "kwok" / "go.sum").rename(sources / "kwok" / "go.sum.moved")

    assert assets.digest(sources, GO) != before


def test_an_asset_folder_of_ones_own_choice_is_taken_as_it_is(tmp_path: Path):
    where = assets.asset_paths({"TONNAGE_ASSETS": str(tmp_path)})

    assert where.programs == tmp_path


def test_the_default_is_below_the_cache_folder_of_the_user(tmp_path: Path):
    where = assets.asset_paths({"XDG_CACHE_HOME": str(tmp_path)})

    assert where.programs.parent == tmp_path / "tonnage" / "assets"
    assert where.scratch == tmp_path / "tonnage" / "build"


def test_kubebuilder_assets_win_for_the_three_programs_they_hold(tmp_path: Path):
    given = tmp_path / "given"
    for name in ("kube-apiserver", "etcd", "kubectl", "kwok"):
        a_program(given / name)
    environment = {"KUBEBUILDER_ASSETS": str(given)}
    where = some_paths(tmp_path, kubebuilder=assets.kubebuilder_folder(environment))
    for name in ("etcd", "kwok"):
        a_program(where.programs / name)

    assert assets.find("etcd", where) == given / "etcd"
    assert assets.find("kwok", where) == where.programs / "kwok"


@pytest.mark.parametrize("missing", ["kube-apiserver", "etcd", "kubectl"])
def test_kubebuilder_assets_that_lack_one_are_not_used(tmp_path: Path, missing: str):
    for name in {"kube-apiserver", "etcd", "kubectl"} - {missing}:
        a_program(tmp_path / name)

    assert assets.kubebuilder_folder({"KUBEBUILDER_ASSETS": str(tmp_path)}) is None


def test_kubebuilder_assets_unset_is_no_folder():
    assert assets.kubebuilder_folder({}) is None


def test_a_file_that_is_not_executable_is_no_program(tmp_path: Path):
    where = some_paths(tmp_path)
    a_program(where.programs / "etcd").chmod(0o644)

    assert assets.find("etcd", where) is None


def test_a_prometheus_on_the_path_must_know_kubernetes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    where = some_paths(tmp_path)
    on_path = a_program(tmp_path / "bin" / "prometheus", "#!/bin/sh\n# file_sd only\n")
    monkeypatch.setenv("PATH", str(on_path.parent))
    without = assets.find("prometheus", where)
    a_program(on_path, "#!/bin/sh\n# discovery/kubernetes\n")

    assert without is None
    assert assets.find("prometheus", where) == on_path


def test_what_is_here_is_not_built(tmp_path: Path):
    where = some_paths(tmp_path)
    etcd = a_program(where.programs / "etcd")

    found = assets.ensure(["etcd"], where=where, step=fail_on_any_step)

    assert found == {"etcd": etcd}


def fail_on_any_step(what: str):
    raise ValueError(what)


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS.keys())
def test_every_tool_has_a_pinned_version_and_checksums(tool: assets.Tool):
    sources = assets.of_checkout("deploy/local") if tool.is_of_lab else kubeconform.SOURCES
    version = assets.version(tool, sources)

    assert version.startswith("v")
    checksums = (sources / tool.module / "go.sum").read_text()
    assert f"{tool.versioned_by} {version} h1:" in checksums
    assert tool.package.startswith(tool.versioned_by)


def test_kubernetes_programs_are_stamped_with_their_version():
    flags = assets.stamp(TOOLS["kube-apiserver"], "v1.36.4")

    for stamped in ("gitVersion=v1.36.4", "gitMajor=1", "gitMinor=36"):
        assert f"-X k8s.io/component-base/version.{stamped}" in flags
        assert f"-X k8s.io/client-go/pkg/version.{stamped}" in flags
