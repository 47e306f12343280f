"""Each project publishes another kind of sum in another place."""

import json

import pytest

from deploy.local.pins import ETCD, KUBERNETES, KWOK, PROJECTS, Platform
from deploy.local.releases import Release, Sources, release_of

LINUX, MACOS = Platform("linux", "amd64"), Platform("darwin", "arm64")
A, B = "a1" * 32, "b2" * 32


def test_kubernetes_publishes_a_sha512_beside_each_program() -> None:
    url = f"https://dl.k8s.io/{KUBERNETES.version}/bin/linux/amd64/kube-apiserver"

    assert release_of("kube-apiserver", LINUX, Sources()) == Release(url, f"{url}.sha512", "sha512", "bare")


def test_etcd_publishes_one_sha256_list_for_all_archives() -> None:
    base = f"https://github.com/etcd-io/etcd/releases/download/{ETCD.version}"
    name = f"etcd-{ETCD.version}-linux-amd64"

    assert release_of("etcd", LINUX, Sources()) == Release(
        f"{base}/{name}.tar.gz", f"{base}/SHA256SUMS", "sha256", "list", f"{name}/etcd"
    )


def test_kwok_publishes_no_sums_so_the_hosts_own_digest_counts() -> None:
    assert release_of("kwok", LINUX, Sources()) == Release(
        f"https://github.com/kubernetes-sigs/kwok/releases/download/{KWOK.version}/kwok-linux-amd64",
        f"https://api.github.com/repos/kubernetes-sigs/kwok/releases/tags/{KWOK.version}",
        "sha256",
        "asset digests",
    )


def test_on_macos_only_kubectl_and_kwok_can_be_downloaded() -> None:
    programs = [name for project in PROJECTS for name in project.packages]

    assert {name for name in programs if release_of(name, MACOS, Sources())} == {"kubectl", "kwok"}


def test_a_mirror_replaces_one_host_and_keeps_the_paths() -> None:
    sources = Sources.from_environment({"TRIGATE_RELEASES_KUBERNETES": "http://127.0.0.1:8000/mirror/"})

    release = release_of("kubectl", LINUX, sources)

    assert release is not None
    assert release.url == f"http://127.0.0.1:8000/mirror/{KUBERNETES.version}/bin/linux/amd64/kubectl"
    assert sources.etcd == Sources().etcd


@pytest.mark.parametrize(
    ("written_as", "text", "found"),
    [
        pytest.param("bare", f"{A}\n", A, id="the sum alone"),
        pytest.param("bare", f"{A.upper()}  file\n", A, id="the sum and a name"),
        pytest.param("bare", "", None, id="empty"),
        pytest.param("bare", "<html>no</html>", None, id="a page"),
        pytest.param("bare", A[:-2], None, id="a sum of another length"),
        pytest.param("list", f"{B}  file.sig\n{A}  file\n", A, id="its line of a list"),
        pytest.param("list", f"{A} *file\n", A, id="its line, binary mark"),
        pytest.param("list", f"{B}  other\n", None, id="not in the list"),
        pytest.param(
            "asset digests", json.dumps({"assets": [{"name": "file", "digest": f"sha256:{A}"}]}), A, id="digest"
        ),
        pytest.param("asset digests", json.dumps({"assets": [{"name": "file", "digest": None}]}), None, id="no digest"),
        pytest.param(
            "asset digests",
            json.dumps({"assets": [{"name": "file", "digest": f"sha512:{A}"}]}),
            None,
            id="other digest",
        ),
        pytest.param("asset digests", json.dumps({"message": "rate limit"}), None, id="no assets"),
        pytest.param("asset digests", "no json", None, id="no json"),
    ],
)
def test_the_published_sum_is_read_or_is_missing(written_as: str, text: str, found: str | None) -> None:
    release = Release("http://host/file", "http://host/sums", "sha256", written_as)  # type: ignore[arg-type] # parametrized

    assert release.published_sum(text) == found
