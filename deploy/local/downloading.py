"""Download one release and believe it only when its published sum agrees."""

import asyncio
import hashlib
import tarfile
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from deploy.local.releases import Release


class DownloadFailed(RuntimeError):
    """The program could not be had from its release; the sentence says why.

    Subclasses: :class:`NoAnswer` (nobody there), :class:`SumMismatch` (what came is not what was published).
    """


class NoAnswer(DownloadFailed):
    """The release host did not answer in time: the next source is tried at once."""


class SumMismatch(DownloadFailed):
    """The bytes differ from the published sum. They are thrown away, never run."""


@dataclass(frozen=True)
class Patience:
    """How long to wait for a release host, in seconds."""

    answer: float = 2.0
    """Until the answer's headers are there. Short: a machine without internet must not wait, and a build can follow."""
    silence: float = 30.0
    """Between two pieces of a body that has begun."""


async def download(release: Release, target: Path, patience: Patience = Patience()) -> None:
    """Put the verified program at ``target``, executable; on any failure ``target`` does not exist.

    Raises:
        NoAnswer: no headers within ``patience.answer``, or the host cannot be reached.
        SumMismatch: the file's sum is not the published one (truncated, altered, other version).
        DownloadFailed: an answer other than 200, no published sum, a broken transfer or archive.
    """
    fetched = target.with_name(f"{target.name}.fetched")
    try:
        timeout = aiohttp.ClientTimeout(total=None, sock_read=patience.silence)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as session:
            expected = release.published_sum(await _text(session, release.sum_url, patience))
            if expected is None:
                raise DownloadFailed(f"{release.sum_url} publishes no {release.algorithm} of {release.file_name}")
            found = await _fetch(session, release, fetched, patience)
        if found != expected:
            raise SumMismatch(f"{release.url} has the {release.algorithm} {found[:16]}…, published is {expected[:16]}…")
        await asyncio.to_thread(_install, fetched, target, release.archive_member)
    finally:
        fetched.unlink(missing_ok=True)


async def _text(session: aiohttp.ClientSession, url: str, patience: Patience) -> str:
    try:
        async with await _answer(session, url, patience) as answer:
            return await answer.text(errors="replace")
    except (aiohttp.ClientError, TimeoutError) as error:
        raise DownloadFailed(f"{url} broke off: {error}") from error


async def _answer(session: aiohttp.ClientSession, url: str, patience: Patience) -> aiohttp.ClientResponse:
    try:
        async with asyncio.timeout(patience.answer):
            answer = await session.get(url)
    except TimeoutError:
        raise NoAnswer(f"{url} did not answer within {patience.answer:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise NoAnswer(f"{url} cannot be reached: {error}") from error
    if answer.status != 200:
        answer.close()
        raise DownloadFailed(f"{url} answered {answer.status} {answer.reason}")
    return answer


async def _fetch(session: aiohttp.ClientSession, release: Release, into: Path, patience: Patience) -> str:
    """Write the body to ``into`` and return its sum in hexadecimal."""
    digest = hashlib.new(release.algorithm)
    try:
        async with await _answer(session, release.url, patience) as answer:
            with into.open("wb") as file:
                async for piece in answer.content.iter_chunked(1 << 20):
                    digest.update(piece)
                    file.write(piece)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise DownloadFailed(f"{release.url} broke off: {error}") from error
    return digest.hexdigest()


def _install(fetched: Path, target: Path, archive_member: str | None) -> None:
    if archive_member is None:
        fetched.chmod(0o755)
        fetched.rename(target)
        return
    try:
        with tarfile.open(fetched, "r:gz") as archive:
            packed = archive.extractfile(archive_member)
            if packed is None:
                raise DownloadFailed(f"{archive_member} in {fetched.name} is not a file")
            unpacked = target.with_name(f"{target.name}.unpacked")
            try:
                with packed, unpacked.open("wb") as file:
                    while piece := packed.read(1 << 20):
                        file.write(piece)
                unpacked.chmod(0o755)
                unpacked.rename(target)
            finally:
                unpacked.unlink(missing_ok=True)
    except (tarfile.TarError, KeyError, EOFError, OSError) as error:
        raise DownloadFailed(f"{fetched.name} is not an archive with {archive_member}: {error}") from error
