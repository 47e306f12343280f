"""The embedded control plane: real etcd, API server, controllers, scheduler and KWOK as child processes on loopback.

Order of the start: etcd, the API server, every definition and policy of the product, then the controllers, the
scheduler and KWOK. The garbage collector learns new kinds only every 30 s, so what it must know has to be there before
it starts.

    async with Plane.start(folder) as plane:
        ...  # plane.kubeconfig, plane.kubeconfig_for("alice"), await plane.crashed()
"""

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
import signal
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import yaml

from deploy.local import commands
from deploy.local.certificates import Authority, signing_key, write_private
from deploy.local.commands import Layout
from deploy.local.kubeconfigs import kubeconfig, write_kubeconfig
from deploy.local.manifests import apply, read_manifests
from deploy.local.pins import ETCD, KUBERNETES, KWOK
from deploy.local.ports import LOOPBACK, Ports, free_ports
from deploy.local.processes import Child, Crash
from deploy.local.programs import Programs, Report, get_programs, say
from deploy.local.state import PlaneState, lock_folder, write_state

DEPLOY = Path(__file__).parents[1]
MANIFESTS = (DEPLOY / "crds", DEPLOY / "rbac", DEPLOY / "admission")
"""What is applied before the controllers start. A folder that is not there is skipped."""
STAGES = Path(__file__).with_name("stages.yaml")

READY_DEADLINE = 180.0
"""Seconds for one step of the start. Each takes about two; on a machine that does much else, half a minute was seen."""
KEPT_STOP_DEADLINE = 15.0
"""Seconds a program of a kept plane has to end in order."""
THROWN_AWAY_STOP_DEADLINE = 2.0
"""The same when nothing is kept: nobody misses an orderly end."""
PORT_TRIES = 3

CLUSTER = "trigate"
ADMINISTRATOR = ("trigate-admin", ("system:masters",))
COMPONENTS = {
    "kube-controller-manager": ("system:kube-controller-manager", ()),
    "kube-scheduler": ("system:kube-scheduler", ()),
    # KWOK stands in for every kubelet at once, which no single node's account may do.
    "kwok": ("system:kwok", ("system:masters",)),
}


class PlaneFailed(RuntimeError):
    """The plane did not become ready; the sentence names the step and, if a program died, its last log lines."""


class Plane:
    """A running control plane. Made by :meth:`start` only."""

    def __init__(self, layout: Layout, *, keep: bool, programs: Programs) -> None:
        self._layout = layout
        self._keep = keep
        self._programs = programs
        self._children: list[Child] = []
        self._commands: dict[str, Sequence[str]] = {}
        self._started: datetime
        self._crash: Future[Crash] = Future()
        self._authority: Authority
        self._ports: Ports

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        folder: Path | None = None,
        *,
        keep: bool = False,
        programs: Programs | None = None,
        manifests: Sequence[Path] = MANIFESTS,
        report: Report = say,
    ) -> AsyncIterator["Plane"]:
        """Run a plane in ``folder`` until the block ends; it is ready to be used when the block begins.

        Without a folder a temporary one is made and removed. With ``keep`` the data, the certificates and, if they are
        free, the ports of the plane that was in the folder before are taken up again and writes survive a power cut;
        without it the folder's former data is dropped.

        Raises:
            PlaneFailed: a program died or was not ready in time.
            AlreadyRunning: another process runs a plane in this folder.
            ManifestRefused: the API server refuses a definition or policy.
            ProgramsMissing, KubernetesTooOld, UnsupportedPlatform: the programs cannot be had.
        """
        async with AsyncExitStack() as stack:
            if folder is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trigate-")))
            programs = programs if programs is not None else await get_programs(report=report)
            layout = Layout(folder.absolute())
            stack.enter_context(await asyncio.to_thread(lock_folder, layout))
            plane = cls(layout, keep=keep, programs=programs)
            stack.push_async_callback(plane._stop)
            await plane._start(manifests)
            yield plane

    @property
    def folder(self) -> Path:
        return self._layout.folder

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig (group ``system:masters``)."""
        return self._layout.kubeconfig

    @property
    def url(self) -> str:
        return f"https://{LOOPBACK}:{self._ports.api}"

    @property
    def programs(self) -> Programs:
        """Where the programs lie; ``plane.programs["kubectl"]`` is there too."""
        return self._programs

    @property
    def children(self) -> Mapping[str, int]:
        """Program → process number, in the order of the start."""
        return {child.name: child.pid for child in self._children}

    @property
    def crash(self) -> Crash | None:
        """The first program that died unasked, or None while all is well."""
        return self._crash.result() if self._crash.done() else None

    async def crashed(self) -> Crash:
        """Wait until a program dies unasked, and say which and how. May be awaited on any event loop."""
        loop = asyncio.get_running_loop()
        told: asyncio.Future[Crash] = loop.create_future()

        def tell(crash: Future[Crash]) -> None:
            def deliver() -> None:
                if not told.done():
                    told.set_result(crash.result())

            with contextlib.suppress(RuntimeError):  # the loop that asked may be closed by then
                loop.call_soon_threadsafe(deliver)

        self._crash.add_done_callback(tell)
        return await told

    async def kill(self, program: str) -> None:
        """SIGKILL a program, and nobody starts it again before `restart`. It is no crash. Raises KeyError."""
        await {child.name: child for child in self._children}[program].kill()

    async def restart(self, program: str) -> None:
        """Start a program that was killed again, with its former arguments: the same ports, certificates and data.

        Must run on the thread that started the plane. Returns when it is started; `ready` waits for the API server.
        Raises KeyError.
        """
        at = next((i for i, child in enumerate(self._children) if child.name == program), None)
        if at is None:
            raise KeyError(program)
        await self._children[at].kill()
        self._children[at] = self._child(program, self._commands[program])
        self._write_state()

    async def ready(self) -> None:
        """Return once the API server answers and has all that it needs. Raises `PlaneFailed`."""
        async with self._administrator() as session:
            await self._until_ok(session, f"{self.url}/readyz", "the API server is not ready")

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig of ``user`` by client certificate, the same file for the same user and groups.

        The API server adds ``system:authenticated``. For ``system:serviceaccount:<namespace>:<name>`` the groups that
        its token would carry are added here. A user has no rights but those that RBAC gives.
        """
        groups = tuple(dict.fromkeys([*groups, *_service_account_groups(user)]))
        digest = hashlib.sha256("\n".join([user, *groups]).encode()).hexdigest()[:8]
        path = self._layout.users / f"{re.sub(r'[^A-Za-z0-9.-]+', '-', user)}-{digest}.kubeconfig"
        if not path.exists():
            self._write_kubeconfig(path, user, groups)
        return path

    def ssl_context(self) -> ssl.SSLContext:
        """A client context of the administrator, for requests without a Kubernetes client."""
        context = ssl.create_default_context(cafile=str(self._layout.pki / "ca.crt"))
        context.load_cert_chain(self._layout.pki / "admin.crt", self._layout.pki / "admin.key")
        return context

    async def _start(self, manifests: Sequence[Path]) -> None:
        objects = await asyncio.to_thread(read_manifests, manifests)
        former = await asyncio.to_thread(self._prepare_folder)
        await self._start_store_and_api(former)
        async with self._administrator() as session:
            await apply(session, self.url, objects)
            await self._release_node_leases(session)
            self._run("kube-controller-manager", commands.kube_controller_manager(self._layout))
            self._run("kube-scheduler", commands.kube_scheduler(self._layout))
            self._run("kwok", commands.kwok(self._layout, STAGES))
            # Made by a controller, and no pod is accepted in the namespace before it is there.
            account = f"{self.url}/api/v1/namespaces/default/serviceaccounts/default"
            await self._until_ok(session, account, "the controllers did not start")
        self._started = datetime.now(UTC)
        self._write_state()

    def _prepare_folder(self) -> Ports | None:
        """Make the folders, certificates and component files; return the ports of the plane that was kept here."""
        layout, now = self._layout, datetime.now(UTC)
        if not self._keep:
            for part in (layout.data, layout.pki, layout.users):
                shutil.rmtree(part, ignore_errors=True)
        for part in (layout.pki, layout.users, layout.logs, layout.data):
            part.mkdir(exist_ok=True, mode=0o700)
        self._authority = _authority(layout.pki, "ca", "trigate", now)
        store_authority = _authority(layout.pki, "etcd-ca", "trigate-etcd", now)
        if not (layout.pki / "service-accounts.key").exists():
            write_private(layout.pki / "service-accounts.key", signing_key())
        store_authority.serving("etcd", [LOOPBACK], now).write(layout.pki, "etcd")
        names = [LOOPBACK, "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        self._authority.serving("kube-apiserver", names, now).write(layout.pki, "apiserver")
        self._authority.client(*ADMINISTRATOR, now).write(layout.pki, "admin")
        ports = layout.folder / "ports"
        try:
            return Ports(*map(int, ports.read_text().split())) if self._keep else None
        except (OSError, ValueError, TypeError):
            return None

    async def _start_store_and_api(self, former: Ports | None) -> None:
        """Start etcd and the API server. A port that someone else takes in between is no reason to give up."""
        for attempt in range(PORT_TRIES):
            self._ports = free_ports(former if attempt == 0 else None)
            try:
                self._run("etcd", commands.etcd(self._layout, self._ports, durable=self._keep))
                self._run("kube-apiserver", commands.kube_apiserver(self._layout, self._ports))
                async with self._administrator() as session:
                    await self._until_ok(session, f"{self.url}/readyz", "the API server is not ready")
                break
            except PlaneFailed:
                crash = self.crash
                if crash is None or attempt + 1 == PORT_TRIES or "address already in use" not in str(crash):
                    raise
                await self._stop()
                self._crash = Future()
        await asyncio.to_thread(self._write_kubeconfigs)

    def _write_kubeconfigs(self) -> None:
        self._layout.folder.joinpath("ports").write_text(
            f"{self._ports.etcd} {self._ports.etcd_peer} {self._ports.api}\n"
        )
        # Every file of a former run may name another port.
        for stale in self._layout.users.glob("*.kubeconfig"):
            stale.unlink()
        self._write_kubeconfig(self._layout.kubeconfig, *ADMINISTRATOR)
        for name, (user, groups) in COMPONENTS.items():
            self._write_kubeconfig(self._layout.users / f"{name}.kubeconfig", user, groups)
        self._layout.scheduler_config.write_text(yaml.safe_dump(commands.scheduler_configuration(self._layout)))

    def _write_kubeconfig(self, path: Path, user: str, groups: Sequence[str]) -> None:
        pair = self._authority.client(user, groups, datetime.now(UTC))
        write_kubeconfig(path, kubeconfig(CLUSTER, self.url, self._authority.pem, user, pair))

    def _run(self, program: str, arguments: Sequence[str]) -> None:
        self._commands[program] = [str(self._programs[program]), *arguments]
        self._children.append(self._child(program, self._commands[program]))

    def _child(self, program: str, command: Sequence[str]) -> Child:
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            # Settings of the person who runs this must not reach in: kwok and kubectl read files in the home folder.
            "HOME": str(self._layout.folder),
            "KWOK_WORKDIR": str(self._layout.folder / "kwok"),
        }
        log = self._layout.logs / f"{program}.log"
        return Child(program, command, log, environment, self._tell_crash)

    def _tell_crash(self, crash: Crash) -> None:
        with contextlib.suppress(InvalidStateError):  # the first one is the cause, the others follow from it
            self._crash.set_result(crash)

    @asynccontextmanager
    async def _administrator(self) -> AsyncIterator[aiohttp.ClientSession]:
        connector = aiohttp.TCPConnector(ssl=self.ssl_context())
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=20)) as session:
            yield session

    async def _until_ok(self, session: aiohttp.ClientSession, url: str, failure: str) -> None:
        """Ask until the answer is 200, unless a program dies first."""
        last = "no answer"
        try:
            async with asyncio.timeout(READY_DEADLINE):
                while self.crash is None:
                    try:
                        async with session.get(url) as answer:
                            if answer.status == 200:
                                return
                            last = f"{answer.status} {(await answer.text(errors='replace'))[:300]}"
                    except aiohttp.ClientError as error:
                        last = str(error)
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise PlaneFailed(f"{failure} after {READY_DEADLINE:.0f} s, last: {last}") from None
        raise PlaneFailed(f"{failure}: {self.crash}")

    async def _release_node_leases(self, session: aiohttp.ClientSession) -> None:
        """Drop the leases that a former KWOK held: a new one leaves those nodes alone until they expire."""
        if self._keep:
            leases = f"{self.url}/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
            async with session.delete(leases) as answer:
                if answer.status not in (200, 404):
                    raise PlaneFailed(f"the leases of a former run cannot be dropped: {await answer.text()}")

    def _write_state(self) -> None:
        state = PlaneState(
            pid=os.getpid(),
            url=self.url,
            kubeconfig=str(self.kubeconfig),
            started=self._started.isoformat(timespec="seconds"),
            keep=self._keep,
            ports={"etcd": self._ports.etcd, "etcd-peer": self._ports.etcd_peer, "api": self._ports.api},
            children=self.children,
            versions={project.name: project.version for project in (KUBERNETES, ETCD, KWOK)},
        )
        write_state(self._layout, state)

    async def _stop(self) -> None:
        """End the programs, those that write first: the store outlives everybody who talks to it."""
        deadline = KEPT_STOP_DEADLINE if self._keep else THROWN_AWAY_STOP_DEADLINE
        children, self._children = self._children, []
        by_name = {child.name: child for child in children}
        for names in (("kwok", "kube-scheduler", "kube-controller-manager"), ("kube-apiserver",), ("etcd",)):
            await asyncio.gather(*(by_name[name].stop(deadline) for name in names if name in by_name))
        self._layout.state.unlink(missing_ok=True)


async def until_stopped(plane: Plane) -> Crash | None:
    """Wait for SIGINT or SIGTERM (None) or for a program's death (the crash): what a foreground command does.

    Must run on the main thread's event loop; the former signal handlers are in place again afterwards.
    """
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, asked.set)
    asking, dying = asyncio.create_task(asked.wait()), asyncio.create_task(plane.crashed())
    try:
        await asyncio.wait({asking, dying}, return_when=asyncio.FIRST_COMPLETED)
        return None if asked.is_set() else dying.result()
    finally:
        for task in (asking, dying):
            task.cancel()
        for number in signals:
            loop.remove_signal_handler(number)


def _authority(folder: Path, name: str, common_name: str, now: datetime) -> Authority:
    """The authority of the plane that was kept here, or a new one when there is none or it is about to expire."""
    try:
        kept = Authority.load(folder, name)
        if kept.is_valid_at(now):
            return kept
    except (OSError, ValueError):
        pass
    made = Authority.create(common_name, now)
    made.write(folder, name)
    return made


def _service_account_groups(user: str) -> tuple[str, ...]:
    """The groups that a service account's token carries; none for another user."""
    parts = user.split(":")
    if parts[:2] != ["system", "serviceaccount"] or len(parts) != 4:
        return ()
    return ("system:serviceaccounts", f"system:serviceaccounts:{parts[2]}")
