"""What the lab takes from a release, and what it refuses: shown against a local server only."""

import hashlib
import io
import os
import stat
import tarfile
from contextlib import contextmanager

import click
import pytest
import yaml

from http_double import Reply, new_certificates, serving, showing
from tonnage_lab import assets, download
from tonnage_lab.assets import TOOLS, AssetPaths
from tonnage_lab.processes import LabError, free_ports

RELEASED = b"#!/bin/sh\necho released\n"
BUILT = "built by go"
FAKE_GO = f"""#!/bin/sh
case "$1" in
version) echo go version go1.26.8 linux/amd64 ;;
env) echo / ;;
build) while [ "$1" != -o ]; do shift; done; echo "{BUILT}" > "$2"; chmod 755 "$2" ;;
esac
"""
GO_MODS = {
    "controlplane": "go.etcd.io/etcd/server/v3 v3.6.8\n",
    "kwok": "sigs.k8s.io/kwok v0.8.0\n",
    "helm": "helm.sh/helm/v4 v4.2.4\n",
}
HOST = "releases.example"


def member(name, content=RELEASED, kind=tarfile.REGTYPE):
    info = tarfile.TarInfo(name)
    info.type, info.size, info.mode = kind, len(content), 0o644
    info.linkname = "/etc/passwd"
    return info, content


def tarball(*members):
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return written.getvalue()


def row(version, content, programs, name, algorithm="sha512"):
    pinned = {
        "url": f"https://{HOST}/{name}",
        algorithm: hashlib.new(algorithm, content).hexdigest(),
    }
    return {"version": version, "programs": programs, "amd64": pinned, "arm64": pinned}


KWOK = row("v0.8.0", RELEASED, {"kwok": ""}, "kwok", "sha256")
ETCD_ARCHIVE = tarball(
    member("etcd-3/README.md", b"read"), member("etcd-3/etcd"), member("../etcd")
)
ETCD = row("v3.6.8", ETCD_ARCHIVE, {"etcd": "etcd-3/etcd"}, "etcd.tar.gz")
OFFERED = {f"/{HOST}/kwok": RELEASED, f"/{HOST}/etcd.tar.gz": ETCD_ARCHIVE}


def answering_with(offered):
    return lambda asked: (
        Reply(body=offered[asked.path]) if asked.path in offered else Reply(status=404)
    )


@pytest.fixture
def where(tmp_path, monkeypatch):
    """Folders of a machine whose Go builds anything at once, and that may download."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(FAKE_GO)
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")
    for module, required in GO_MODS.items():
        (tmp_path / "sources" / module).mkdir(parents=True)
        (tmp_path / "sources" / module / "go.mod").write_text(f"require {required}")
    return AssetPaths(
        sources=tmp_path / "sources", programs=tmp_path / "programs", scratch=tmp_path / "scratch"
    )


def table(where, *rows):
    (where.sources / "downloads.yaml").write_text(yaml.safe_dump(list(rows)))


def content(where, name):
    return assets.ensure([name], where=where)[name].read_text().strip()


class TestFromAServer:
    def test_a_released_program_is_taken_without_go(self, where, tmp_path, monkeypatch):
        table(where, KWOK, ETCD)
        (tmp_path / "bin" / "go").write_text("#!/bin/sh\nexit 1\n")
        certificates = new_certificates(tmp_path / "certificates")
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificates.ca))

        with serving(answering_with(OFFERED), tls=showing(certificates.server)) as server:
            monkeypatch.setenv("TONNAGE_DOWNLOAD", server.url)
            found = assets.ensure(["kwok", "etcd"], where=where)

        assert {each.read_bytes() for each in found.values()} == {RELEASED}
        assert all(stat.S_IMODE(each.stat().st_mode) == 0o755 for each in found.values())
        assert [each.path for each in server.asked] == list(OFFERED)

    def test_nothing_but_programs_is_left(self, where, monkeypatch):
        table(where, ETCD)

        with serving(answering_with(OFFERED)) as server:
            monkeypatch.setenv("TONNAGE_DOWNLOAD", server.url + "/")
            assets.ensure(["etcd"], where=where)

        left = sorted(each.name for each in where.programs.parent.rglob("*") if each.is_file())
        assert left == ["downloads.yaml", "etcd", "go", "go.mod", "go.mod", "go.mod", "lock"]

    @pytest.mark.parametrize("name", ["kwok", "etcd"])
    def test_another_content_is_refused_aloud_and_built(self, where, monkeypatch, capsys, name):
        table(where, KWOK, ETCD)
        other = {path: offered + b"\n" for path, offered in OFFERED.items()}

        with serving(answering_with(other)) as server:
            monkeypatch.setenv("TONNAGE_DOWNLOAD", server.url)
            assert content(where, name) == BUILT

        told = capsys.readouterr().err
        assert told.startswith(f"REFUSED, not run: {server.url}/{HOST}/{name}")
        assert "is pinned. Built from source instead.\n" in told

    @pytest.mark.parametrize(
        "members",
        [
            [],
            [member("etcd")],
            [member("../etcd-3/etcd")],
            [member("etcd-3/etcd", b"", tarfile.SYMTYPE)],
            [member("etcd-3/etcd", b"", tarfile.LNKTYPE)],
            [member("etcd-3/etcd", b"", tarfile.DIRTYPE), member("etcd-3/etcd")],
            [member("etcd-3/etcd", b"", tarfile.FIFOTYPE)],
        ],
        ids=["empty", "elsewhere", "above", "symlink", "link", "folder", "fifo"],
    )
    def test_an_archive_without_that_plain_file_is_refused(
        self, where, monkeypatch, capsys, members
    ):
        archive = tarball(*members)
        table(where, row("v3.6.8", archive, {"etcd": "etcd-3/etcd"}, "etcd.tar.gz"))

        with serving(answering_with({f"/{HOST}/etcd.tar.gz": archive})) as server:
            monkeypatch.setenv("TONNAGE_DOWNLOAD", server.url)
            assert content(where, "etcd") == BUILT

        assert "has no plain file etcd-3/etcd" in capsys.readouterr().err

    @pytest.mark.parametrize("archive", [b"no archive", ETCD_ARCHIVE[:90]], ids=["other", "cut"])
    def test_what_is_no_archive_is_refused(self, where, monkeypatch, capsys, archive):
        table(where, row("v3.6.8", archive, {"etcd": "etcd-3/etcd"}, "etcd.tar.gz"))

        with serving(answering_with({f"/{HOST}/etcd.tar.gz": archive})) as server:
            monkeypatch.setenv("TONNAGE_DOWNLOAD", server.url)
            assert content(where, "etcd") == BUILT

        assert "is no archive" in capsys.readouterr().err

    def test_what_is_missing_there_is_built_and_the_rest_is_taken(self, where, monkeypatch, capsys):
        table(where, KWOK, ETCD)

        with serving(answering_with({f"/{HOST}/etcd.tar.gz": ETCD_ARCHIVE})) as server:
            monkeypatch.setenv("TONNAGE_DOWNLOAD", server.url)
            found = assets.ensure(["kwok", "etcd"], where=where)

        assert found["kwok"].read_text().strip() == BUILT
        assert found["etcd"].read_bytes() == RELEASED
        assert "404" in capsys.readouterr().err

    def test_a_connection_that_ends_early_is_no_program(self, where, monkeypatch, capsys):
        table(where, KWOK)

        with serving(
            lambda _: Reply(body=RELEASED[:5], headers={"Content-Length": str(len(RELEASED))})
        ) as server:
            monkeypatch.setenv("TONNAGE_DOWNLOAD", server.url)
            assert content(where, "kwok") == BUILT

        assert "Built from source instead." in capsys.readouterr().err

    def test_no_more_bytes_are_read_than_an_archive_may_have(self, tmp_path):
        with serving(answering_with({"/x": bytes(3 * 2**20)})) as server:
            archive = download.Archive(
                version="v1", url=f"{server.url}/x", algorithm="sha256", digest="", members={}
            )
            with pytest.raises(LabError, match="too large or too slow"):
                download.fetch(archive, tmp_path, max_bytes=2**20)

        assert (tmp_path / "x").stat().st_size <= 2**20


def test_without_a_connection_one_address_is_tried_and_all_is_built(where, monkeypatch, capsys):
    table(where, KWOK, ETCD)
    (port,) = free_ports(1)
    monkeypatch.setenv("TONNAGE_DOWNLOAD", f"http://127.0.0.1:{port}")

    found = assets.ensure(["kwok", "etcd"], where=where)

    assert {each.read_text().strip() for each in found.values()} == {BUILT}
    assert capsys.readouterr().err == (
        f"no connection to http://127.0.0.1:{port}/{HOST}/kwok. Built from source instead.\n"
        f"{assets.how_long([TOOLS['kwok'], TOOLS['etcd']], os.cpu_count() or 1)}\n"
    )


def test_another_version_than_that_of_go_mod_is_not_asked_for(where, monkeypatch):
    table(where, KWOK | {"version": "v0.8.1"})

    with serving(answering_with(OFFERED)) as server:
        monkeypatch.setenv("TONNAGE_DOWNLOAD", server.url)
        assert content(where, "kwok") == BUILT

    assert server.asked == []


@pytest.mark.parametrize(
    ("machine", "environment"),
    [("x86_64", {"TONNAGE_DOWNLOAD": "0"}), ("riscv64", {})],
)
def test_nothing_is_downloaded_where_it_is_turned_off_or_of_no_use(where, machine, environment):
    table(where, KWOK)

    assert (
        download.archives(
            where.sources / "downloads.yaml", machine=machine, environment=environment
        )
        == ()
    )


SOURCES = assets.of_checkout("deploy/local")
PINNED = [
    archive
    for machine in ("x86_64", "aarch64")
    for archive in download.archives(SOURCES / "downloads.yaml", machine=machine, environment={})
]


@pytest.mark.parametrize("archive", PINNED, ids=[each.url.rpartition("/")[2] for each in PINNED])
def test_every_row_is_of_the_version_that_would_be_built(archive):
    for name in archive.members:
        assert assets.version(TOOLS[name], SOURCES) == archive.version
    assert archive.url.startswith("https://")
    assert len(archive.digest) == 2 * hashlib.new(archive.algorithm).digest_size
    assert archive.algorithm in {"sha256", "sha512"}
    assert archive.digest == archive.digest.lower()


def test_all_but_etcd_are_downloaded_where_the_projects_build_for_all():
    machines = {
        machine: {
            name
            for archive in download.archives(
                SOURCES / "downloads.yaml", machine=machine, environment={}
            )
            for name in archive.members
        }
        for machine in ("x86_64", "aarch64")
    }

    assert machines["x86_64"] == set(assets.OF_LAB) - {"etcd"}
    assert machines["aarch64"] == set(assets.OF_LAB) - {"etcd", "prometheus", "kwok"}


def test_what_is_built_begins_with_how_long_all_of_it_takes(where, monkeypatch, capsys):
    monkeypatch.setenv("TONNAGE_DOWNLOAD", "0")

    @contextmanager
    def step(what):
        click.echo(what, err=True)
        yield

    assets.ensure(["kwok", "etcd"], where=where, step=step)
    first, *steps = capsys.readouterr().err.splitlines()

    assert first == assets.how_long([TOOLS["kwok"], TOOLS["etcd"]], os.cpu_count() or 1)
    assert [each.split()[:2] for each in steps] == [["building", "kwok"], ["building", "etcd"]]


def test_programs_that_are_here_are_not_announced(where, monkeypatch, capsys):
    monkeypatch.setenv("TONNAGE_DOWNLOAD", "0")
    assets.ensure(["kwok"], where=where)
    capsys.readouterr()

    assets.ensure(["kwok"], where=where)

    assert capsys.readouterr().err == ""
