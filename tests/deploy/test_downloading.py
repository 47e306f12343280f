"""What comes from a release host is believed only when its published sum agrees."""

import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from deploy.local.downloading import DownloadFailed, NoAnswer, Patience, SumMismatch, download
from deploy.local.releases import Release
from tests.deploy.conftest import ReleaseHost, breaking_off_after, never_answering

PROGRAM = b"#!/bin/sh\necho I am the program\n" * 100
HASTY = Patience(answer=0.2, silence=0.5)


def release(host: ReleaseHost, *, member: str | None = None) -> Release:
    return Release(f"{host.url}/program", f"{host.url}/program.sha512", "sha512", "bare", member)


def publish(host: ReleaseHost, content: bytes) -> None:
    host.files = {"/program": content, "/program.sha512": hashlib.sha512(content).hexdigest().encode()}


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_a_good_file_is_installed_and_may_be_run(host: ReleaseHost, tmp_path: Path) -> None:
    publish(host, PROGRAM)

    await download(release(host), tmp_path / "program")

    assert (tmp_path / "program").read_bytes() == PROGRAM
    assert os.access(tmp_path / "program", os.X_OK)
    assert left_in(tmp_path) == ["program"]


async def test_a_file_with_another_sum_is_thrown_away(host: ReleaseHost, tmp_path: Path) -> None:
    publish(host, PROGRAM)
    host.files["/program"] = PROGRAM + b"and more"

    with pytest.raises(SumMismatch, match=r"has the sha512 .*, published is "):
        await download(release(host), tmp_path / "program")

    assert left_in(tmp_path) == []


async def test_a_file_cut_short_by_the_host_is_thrown_away(host: ReleaseHost, tmp_path: Path) -> None:
    publish(host, PROGRAM)
    host.files["/program"] = PROGRAM[:500]

    with pytest.raises(SumMismatch):
        await download(release(host), tmp_path / "program")

    assert left_in(tmp_path) == []


async def test_a_transfer_that_breaks_off_leaves_nothing(host: ReleaseHost, tmp_path: Path) -> None:
    publish(host, PROGRAM)
    host.files["/program"] = breaking_off_after(PROGRAM[:500], announced=len(PROGRAM))

    with pytest.raises(DownloadFailed, match="broke off"):
        await download(release(host), tmp_path / "program")

    assert left_in(tmp_path) == []


@pytest.mark.parametrize("silent", ["/program", "/program.sha512"])
async def test_a_host_that_does_not_answer_is_left_at_once(host: ReleaseHost, tmp_path: Path, silent: str) -> None:
    publish(host, PROGRAM)
    host.files[silent] = never_answering

    with pytest.raises(NoAnswer, match=r"did not answer within 0\.2 s"):
        await download(release(host), tmp_path / "program", HASTY)

    assert left_in(tmp_path) == []


async def test_a_host_that_is_not_there_counts_as_no_answer(tmp_path: Path, unused_tcp_port: int) -> None:
    nowhere = ReleaseHost(url=f"http://127.0.0.1:{unused_tcp_port}")

    with pytest.raises(NoAnswer, match="cannot be reached"):
        await download(release(nowhere), tmp_path / "program")


async def test_a_file_without_a_published_sum_is_not_even_fetched(host: ReleaseHost, tmp_path: Path) -> None:
    publish(host, PROGRAM)
    host.files["/program.sha512"] = b"<html>moved</html>"

    with pytest.raises(DownloadFailed, match="publishes no sha512 of program"):
        await download(release(host), tmp_path / "program")

    assert host.asked["/program"] == 0


async def test_an_answer_of_404_names_the_address(host: ReleaseHost, tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match=r"/program\.sha512 answered 404 Not Found"):
        await download(release(host), tmp_path / "program")


def archive_of(name: str, content: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


async def test_the_program_is_taken_out_of_its_archive(host: ReleaseHost, tmp_path: Path) -> None:
    publish(host, archive_of("etcd-v3/etcd", PROGRAM))

    await download(release(host, member="etcd-v3/etcd"), tmp_path / "etcd")

    assert (tmp_path / "etcd").read_bytes() == PROGRAM
    assert left_in(tmp_path) == ["etcd"]


@pytest.mark.parametrize("content", [archive_of("other", PROGRAM), b"no archive"], ids=["lacks it", "is none"])
async def test_an_archive_without_the_program_is_refused(host: ReleaseHost, tmp_path: Path, content: bytes) -> None:
    publish(host, content)

    with pytest.raises(DownloadFailed, match="is not an archive with etcd-v3/etcd"):
        await download(release(host, member="etcd-v3/etcd"), tmp_path / "etcd")

    assert left_in(tmp_path) == []
