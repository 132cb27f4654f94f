"""Checks whether a machine can be a node: `examine` reads facts from it, `evaluate` turns them into findings."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.agent.network.core.topology import VXLAN_PORT
from retinue.devtools import engine
from retinue.devtools.node_network import EgressPath, VxlanPort, try_egress, try_vxlan_port
from retinue.devtools.virtual_machines import GUESTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OK, WARNING, ERROR = "OK", "WARNING", "ERROR"
SESSION_SUBNETS = ipaddress.IPv4Network("10.128.0.0/9")
"""The range from which managers allocate the private networks of sessions, unless they are given another."""
LEAST_MTU = 1300
DATA_DIRECTORY = Path("/var/lib/retinue-agent")
"""Where an agent keeps its state and the files of kernels, unless it is given another directory."""
PROGRAM_DIRECTORIES = (Path("/usr/lib/retinue"), Path("/var/cache/retinue"))
"""The directories of the programs that agents put inside kernels: shipped in their image, and built on the node."""
OLDEST_ENGINE, OLDEST_RUNC = (20, 10), (1, 1)
OLDEST_KERNEL = (5, 12)
"""From there on, what is mounted into kernels can be made read-only before it is seen (`mount_setattr`)."""
TOOLS = {
    "bwrap": ("bubblewrap", "native processes"),
    "setpriv": ("util-linux", "virtual machines"),
    "ip": ("iproute2", "nodes of `retinue dev`"),
    "nft": ("nftables", "egress of kernels"),
    "mke2fs": ("e2fsprogs", "the bound of work directories"),
}
LINKS = ("bridge", "veth", "vxlan")
RESOLVERS = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
"""The files that list a node's name servers; agents read both."""
# What an engine says that it can limit, by the field of its answer to `GET /info`.
_LIMITS = {"MemoryLimit": "memory", "CpuCfsQuota": "cpu", "PidsLimit": "pids"}
# Words in the names of runtimes whose containers have a kernel of their own.
_SANDBOXES = ("runsc", "gvisor", "kata")
UNITS = ("retinue-agent.service", "retinue-agent*.service")
"""Names of services that run agents: the first is looked for though it does not run."""
_UNIT_PROPERTIES = ("Id", "LoadState", "KillMode", "Delegate")
_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that were found. None, or an empty value, says that it is not there or could not be found out.

    `docker_host` is the address given for the engine. `links` are the kinds of links that can be made. `addresses` are
    networks of the machine's own links and routes. `clock_synchronized` is None where it is unknown. `obstacles` are
    chains of the packet filter, as `FAMILY TABLE CHAIN`, that drop what is forwarded unless a rule lets it pass: `way`
    says what became of packets;
    `name_servers` are those of the node's resolv.conf. `qemu` and `guest_linux` are versions, the latter of the Linux
    that virtual machines boot. `units` are properties of the systemd services that run agents, `mounts` options of the
    file systems of the agent's directories.
    """

    root: bool = True
    tools: Mapping[str, bool] = field(default_factory=dict)
    compiler: bool = True
    programs_built: bool = False
    ssh_built: bool = False
    python_built: bool = False
    kernel: str = ""
    docker_host: str = ""
    engine: Mapping[str, Any] | None = None
    cgroup_version: int = 0
    controllers: frozenset[str] = frozenset()
    links: Mapping[str, bool] = field(default_factory=dict)
    overlay: bool = True
    nftables: bool = True
    mtu: int | None = None
    addresses: Sequence[str] = ()
    clock_synchronized: bool | None = None
    obstacles: Sequence[str] = ()
    way: EgressPath = field(default_factory=EgressPath)
    vxlan: VxlanPort = field(default_factory=lambda: VxlanPort(VXLAN_PORT))
    name_servers: Sequence[str] = ()
    qemu: str = ""
    guest_linux: str = ""
    kvm: bool = False
    units: Sequence[Mapping[str, str]] = ()
    mounts: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: `state` is OK, WARNING (something works less well) or ERROR; `remedy` mends it."""

    name: str
    state: str
    message: str
    remedy: str = ""


def evaluate(facts: Facts, subnets: ipaddress.IPv4Network = SESSION_SUBNETS) -> list[Finding]:
    """Returns the findings that the facts give for a node; pure."""
    findings = [
        Finding("root", OK, "this is root")
        if facts.root
        else Finding("root", ERROR, "an agent needs root", "run the agent, and this, as root")
    ]
    for tool, (package, purpose) in TOOLS.items():
        if facts.tools.get(tool):
            findings.append(Finding(tool, OK, "is there"))
        else:
            findings.append(Finding(tool, ERROR, f"is missing: needed for {purpose}", f"apt-get install {package}"))
    findings += [_kernel(facts.kernel), *_engine(facts), *_machines(facts), _ssh(facts.ssh_built)]
    findings.append(_python(facts.python_built))
    findings += [*_groups(facts), *_units(facts.units)]
    for kind in LINKS:
        if facts.links.get(kind):
            findings.append(Finding(kind, OK, "links of this kind can be made"))
        else:
            remedy = f"modprobe {kind}, or a kernel with CONFIG_{kind.upper()}"
            findings.append(Finding(kind, ERROR, "links of this kind cannot be made", remedy))
    for name, there, purpose in (
        ("overlay", facts.overlay, "the writable layer over the host's root"),
        ("nf_tables", facts.nftables, "egress of kernels"),
    ):
        remedy = "" if there else f"modprobe {name}"
        message = "the kernel has it" if there else f"the kernel lacks it: needed for {purpose}"
        findings.append(Finding(name, OK if there else ERROR, message, remedy))
    findings += [_mtu(facts.mtu), _addresses(facts.addresses, subnets), _clock(facts.clock_synchronized)]
    findings += _mounts(facts.mounts)
    return [*findings, *_egress(facts.way, facts.obstacles), _vxlan(facts.vxlan), _names(facts.name_servers)]


def _engine(facts: Facts) -> list[Finding]:
    if facts.docker_host and not facts.docker_host.startswith("unix:///"):
        message = f"{facts.docker_host} is no engine of this node: agents end at their start"
        return [Finding("docker", ERROR, message, "set DOCKER_HOST or --docker-host to unix:///PATH, or to nothing")]
    if facts.engine is None:
        remedy = "apt-get install docker.io, or start the engine; DOCKER_HOST says where it is"
        return [Finding("docker", WARNING, "no engine answers: sessions with an image cannot run here", remedy)]
    found = []
    for name, text, oldest in (
        ("docker", str(facts.engine.get("version", "")), OLDEST_ENGINE),
        ("runc", str(facts.engine.get("runc", "")), OLDEST_RUNC),
    ):
        wanted = ".".join(map(str, oldest))
        version = _version(text)
        if not version:
            found.append(Finding(name, WARNING, "does not say its version", f"{wanted} or newer is known to work"))
        elif version < oldest:
            found.append(Finding(name, ERROR, f"version {text} is too old", f"install {wanted} or newer"))
        else:
            found.append(Finding(name, OK, f"version {text}"))
    found += _engine_configuration(facts.engine)
    if facts.engine.get("live_restore"):
        found.append(Finding("live-restore", OK, "containers outlive a restart of the engine"))
    else:
        remedy = 'put "live-restore": true into /etc/docker/daemon.json and reload the engine'
        found.append(Finding("live-restore", WARNING, "a restart of the engine ends all containers", remedy))
    if not facts.programs_built and not facts.compiler:
        remedy = "apt-get install gcc libc6-dev"
        found.append(Finding("compiler", ERROR, "programs for containers are not built, and cannot be", remedy))
    return found


def _engine_configuration(engine: Mapping[str, Any]) -> list[Finding]:
    """Returns what an administrator configured that containers of kernels cannot do with."""
    found = []
    options = {str(option).partition(",")[0] for option in engine.get("security", ())}
    if "name=rootless" in options:
        message = "the engine is rootless: its containers cannot have the users and files of kernels"
        remedy = "give the agent an engine that runs as root: --docker-host unix:///PATH"
        found.append(Finding("engine-users", ERROR, message, remedy))
    elif "name=userns" in options:
        message = "the engine maps users (userns-remap): kernels are not mapped, and files of images have other owners"
        remedy = "for images with files that only their own user reads, give the agent another engine: --docker-host"
        found.append(Finding("engine-users", WARNING, message, remedy))
    if unlimited := engine.get("unlimited"):
        message = f"the engine does not limit {', '.join(unlimited)}: kernels take more than their share"
        remedy = "boot with these cgroup controllers, and remove native.cgroupdriver from exec-opts in daemon.json"
        found.append(Finding("engine-limits", ERROR, message, remedy))
    runtime = str(engine.get("runtime", ""))
    if any(name in runtime for name in _SANDBOXES):
        message = f"the default runtime, {runtime}, hides the processes of containers from the node"
        remedy = 'put "default-runtime": "runc" into /etc/docker/daemon.json and restart the engine'
        found.append(Finding("engine-runtime", ERROR, message, remedy))
    return found


def _units(units: Sequence[Mapping[str, str]]) -> list[Finding]:
    """Returns what is wrong with services that run an agent: kernels are its children, and outlive it."""
    findings = []
    for unit in units:
        name = unit.get("Id", "?")
        wrong = []
        if unit.get("KillMode") not in {"process", "none"}:
            wrong.append(("KillMode=process", "a restart of the agent ends its kernels"))
        if unit.get("Delegate") != "yes":
            wrong.append(("Delegate=yes", "systemd may change the control groups of kernels"))
        lines = " and ".join(line for line, _ in wrong)
        if wrong:
            message = f"{name} lacks {lines}: {', and '.join(why for _, why in wrong)}"
            remedy = f"systemctl edit {name}: put {lines} below [Service], as in deploy/systemd"
            findings.append(Finding("systemd", ERROR, message, remedy))
        else:
            findings.append(Finding("systemd", OK, f"{name} lets kernels outlive the agent"))
    return findings


def _machines(facts: Facts) -> list[Finding]:
    if not facts.qemu:
        remedy = "apt-get install --no-install-recommends qemu-system-x86"
        return [Finding("qemu", WARNING, "is missing: sessions with isolation vm cannot run here", remedy)]
    found = [Finding("qemu", OK, f"version {facts.qemu}")]
    if facts.guest_linux:
        found.append(Finding("vm-linux", OK, f"virtual machines boot Linux {facts.guest_linux}"))
    else:
        remedy = "retinue-agent build linux"
        found.append(Finding("vm-linux", WARNING, "there is no Linux that virtual machines could boot", remedy))
    if facts.kvm:
        found.append(Finding("kvm", OK, "/dev/kvm is there; agents try whether it works"))
    else:
        remedy = "enable virtualization in the firmware or, for a node that is a virtual machine, on its host"
        found.append(Finding("kvm", WARNING, "there is no /dev/kvm: virtual machines are emulated, and slow", remedy))
    return found


def _kernel(release: str) -> Finding:
    if _version(release) < OLDEST_KERNEL:
        wanted = ".".join(map(str, OLDEST_KERNEL))
        return Finding("linux", ERROR, f"version {release or '?'} is too old", f"boot Linux {wanted} or newer")
    return Finding("linux", OK, f"version {release}")


def _ssh(built: bool) -> Finding:
    if built:
        return Finding("ssh", OK, "programs for ssh between kernels are built")
    packages = "musl-tools dpkg-dev make busybox-static debian-archive-keyring"
    remedy = f"apt-get install {packages}; then an agent builds them, or retinue-agent build ssh"
    return Finding("ssh", WARNING, "programs for ssh are not built: kernels of a session have none", remedy)


def _python(built: bool) -> Finding:
    if built:
        return Finding("python", OK, "the Python for code is built")
    remedy = "an agent builds it, or retinue-agent build python, which says what it lacks"
    return Finding("python", WARNING, "the Python for code is not built: `retinue code` waits for it", remedy)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def _groups(facts: Facts) -> list[Finding]:
    if missing := {"memory", "cpu", "pids"} - facts.controllers:
        names = ", ".join(sorted(missing))
        remedy = "boot with cgroup_enable=memory, or mount the controllers under /sys/fs/cgroup"
        return [Finding("cgroups", ERROR, f"version {facts.cgroup_version or '?'} without {names}", remedy)]
    return [Finding("cgroups", OK, f"version {facts.cgroup_version} with memory, cpu and pids")]


def _mtu(mtu: int | None) -> Finding:
    if mtu is None:
        return Finding("mtu", ERROR, "there is no default route", "give the agent its --underlay-address")
    if mtu < LEAST_MTU:
        return Finding("mtu", ERROR, f"{mtu} leaves too little inside sessions", f"at least {LEAST_MTU} on the uplink")
    return Finding("mtu", OK, f"{mtu} on the uplink, {mtu - 50} inside sessions over several nodes")


def _addresses(addresses: Sequence[str], subnets: ipaddress.IPv4Network) -> Finding:
    overlaps = [text for text in addresses if ipaddress.ip_network(text, strict=False).overlaps(subnets)]
    if overlaps:
        # Sessions are in namespaces of their own: what they cannot reach is what lies behind these.
        message = f"{', '.join(overlaps)} overlaps {subnets}, which sessions have"
        remedy = (
            "if kernels are to reach it, name it to the agent by --egress-allow, or give managers --session-subnets"
        )
        return Finding("addresses", WARNING, message, remedy)
    return Finding("addresses", OK, f"nothing here overlaps {subnets}")


def _clock(synchronized: bool | None) -> Finding:
    if synchronized is None:
        return Finding("clock", WARNING, "its synchronization is unknown", "run chrony or systemd-timesyncd")
    if not synchronized:
        return Finding("clock", WARNING, "is not synchronized; certificates need it right", "run chrony or ntpd")
    return Finding("clock", OK, "is synchronized")


def _mounts(mounts: Mapping[str, frozenset[str]]) -> list[Finding]:
    """Returns what is wrong with the file systems of directories of the agent, by their options."""
    findings = []
    for directory, found in mounts.items():
        if "ro" in found:
            message = f"{directory} is on a file system that is mounted read-only: an agent cannot start there"
            findings.append(
                Finding("data-dir", ERROR, message, "mount it for writing, or give the agent another --data-dir")
            )
        elif "noexec" in found:
            message = (
                f"{directory} is on a file system that is mounted noexec: programs in work directories do not start"
            )
            remedy = "mount it without noexec, or give the agent another --scratch-dir"
            findings.append(Finding("data-dir", WARNING, message, remedy))
        else:
            findings.append(Finding("data-dir", OK, f"{directory} can be written, and programs on it start"))
    return findings


def _egress(way: EgressPath, obstacles: Sequence[str]) -> list[Finding]:
    if way.problem:
        remedy = "see to that, and run this again"
        return [Finding("egress", WARNING, f"whether kernels reach the outside was not tried: {way.problem}", remedy)]
    found = []
    if way.blocked:
        how = ", ".join(f"{protocol} is {end}" for protocol, end in way.blocked)
        chains = f"; chains that drop unless a rule lets pass: {', '.join(obstacles)}" if obstacles else ""
        remedy = (
            "in the node's firewalls (nftables, iptables, iptables-legacy), let pass what comes from, or goes to,"
            " interfaces whose names start with rte"
        )
        message = f"what a kernel sends out does not get to {way.uplink}: {how}{chains}"
        found.append(Finding("egress", WARNING, message, remedy))
    else:
        message = f"TCP and UDP of a kernel get to {way.uplink}; whether answers get back was not tried"
        found.append(Finding("egress", OK, message))
    if not way.forwards:
        message = (
            "net.ipv4.ip_forward is 0: agents turn it on with a kernel, and what turns it off again cuts kernels off"
        )
        found.append(Finding("forwarding", WARNING, message, "put net.ipv4.ip_forward=1 into a file of /etc/sysctl.d"))
    elif not way.takes_answers:
        setting = f"net.ipv4.conf.{way.uplink}.forwarding"
        found.append(
            Finding("forwarding", WARNING, f"{setting} is 0: no answers get to kernels", f"set {setting} to 1")
        )
    else:
        found.append(Finding("forwarding", OK, "the node forwards packets"))
    return found


def _vxlan(vxlan: VxlanPort) -> Finding:
    if vxlan.problem:
        message = f"whether UDP {vxlan.port} can be used was not tried: {vxlan.problem}"
        return Finding("vxlan-port", WARNING, message, "see to that, and run this again")
    if vxlan.usable:
        return Finding("vxlan-port", OK, f"UDP {vxlan.port} can be used for sessions over several nodes")
    by = ", ".join(vxlan.holders) or "something that is not seen from here"
    message = f"UDP {vxlan.port} is taken by {by}: sessions over several nodes cannot have a kernel here"
    return Finding("vxlan-port", WARNING, message, "start managers with another --vxlan-port, the same on all of them")


def _names(servers: Sequence[str]) -> Finding:
    if any(not _is_own(server) for server in servers):
        return Finding("names", OK, "a name server that kernels can ask")
    remedy = "start the agent with --name-server ADDRESS"
    return Finding("names", WARNING, "the node's name server is on its loopback: kernels find no names", remedy)


def _is_own(server: str) -> bool:
    try:
        address = ipaddress.IPv4Address(server)
    except ValueError:
        # Egress is IPv4.
        return True
    return address.is_loopback or address.is_unspecified


def examine(docker_host: str = "", vxlan_port: int = VXLAN_PORT, data_directory: Path = DATA_DIRECTORY) -> Facts:
    """Looks at this machine; makes and removes a few links and a table of the packet filter.
    Blocks for up to some seconds.
    """
    mount = Path("/sys/fs/cgroup")
    unified = (mount / "cgroup.controllers").exists()
    controllers = (mount / "cgroup.controllers").read_text().split() if unified else os.listdir(mount)
    filesystems = Path("/proc/filesystems").read_text().split()
    root = os.geteuid() == 0
    return Facts(
        root=root,
        tools={tool: shutil.which(tool) is not None for tool in TOOLS},
        compiler=any(map(shutil.which, ("musl-gcc", "gcc", "cc"))),
        programs_built=_is_built("init-*"),
        ssh_built=_is_built("ssh-*"),
        python_built=_is_built("python-*"),
        kernel=os.uname().release,
        docker_host=docker_host,
        engine=_ask_engine(docker_host),
        cgroup_version=2 if unified else 1,
        controllers=frozenset(controllers),
        links={kind: root and _can_make(kind) for kind in LINKS},
        overlay="overlay" in filesystems or _run("modprobe", "overlay"),
        nftables=_run("nft", "list", "ruleset"),
        mtu=_uplink_mtu(),
        addresses=_routes(),
        clock_synchronized=_is_synchronized(),
        obstacles=_obstacles(_output("nft", "-j", "list", "chains")),
        way=try_egress() if root else EgressPath(problem="this is not root"),
        vxlan=try_vxlan_port(vxlan_port) if root else VxlanPort(vxlan_port, problem="this is not root"),
        mounts={str(data_directory): _mount_options(data_directory)},
        name_servers=[server for file in RESOLVERS for server in _name_servers(file)],
        qemu=_qemu(),
        guest_linux=max((path.name.removeprefix("linux-") for path in GUESTS.glob("linux-*")), default=""),
        kvm=Path("/dev/kvm").is_char_device(),
        units=agent_units(_text("systemctl", "show", *UNITS, f"--property={','.join(_UNIT_PROPERTIES)}")),
    )


def _mount_options(directory: Path) -> frozenset[str]:
    """Returns `ro` and `noexec` as far as the file system of a directory, or of where it would be made, has them."""
    there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    flags = os.statvfs(there).f_flag
    return frozenset(name for name, flag in (("ro", os.ST_RDONLY), ("noexec", os.ST_NOEXEC)) if flags & flag)


def _obstacles(listing: Any) -> list[str]:
    """Returns the base chains of others that hook into forwarding and drop by default, from `nft -j list chains`."""
    entries = listing.get("nftables", ()) if isinstance(listing, dict) else ()
    chains = [entry["chain"] for entry in entries if "chain" in entry]
    return [
        f"{chain['family']} {chain['table']} {chain['name']}"
        for chain in chains
        if (chain.get("hook"), chain.get("policy")) == ("forward", "drop") and not chain["table"].startswith("retinue-")
    ]


def _name_servers(file: Path) -> list[str]:
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return []
    return [words[1] for words in lines if words[:1] == ["nameserver"] and len(words) > 1]


def _is_built(pattern: str) -> bool:
    return any(path for directory in PROGRAM_DIRECTORIES for path in directory.glob(pattern))


def _ask_engine(host: str) -> dict[str, Any] | None:
    if (found := engine.describe(host)) is None:
        return None
    version, info = found
    parts = {part.get("Name"): part.get("Version") for part in version.get("Components", [])}
    return {
        **engine_configuration(info),
        "version": version.get("Version"),
        "runc": parts.get("runc", ""),
        "live_restore": bool(info.get("LiveRestoreEnabled")),
    }


def engine_configuration(info: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parts of an engine's answer to `GET /info` that say how it was configured; pure."""
    default = str(info.get("DefaultRuntime") or "")
    runtime = (info.get("Runtimes") or {}).get(default) or {}
    program = str(runtime.get("path") or runtime.get("runtimeType") or "")
    return {
        "security": tuple(info.get("SecurityOptions") or ()),
        # Engines that do not say it are not known to lack it.
        "unlimited": tuple(name for field, name in _LIMITS.items() if info.get(field) is False),
        "runtime": default if program in {"", default} else f"{default} ({program})",
    }


def _can_make(kind: str) -> bool:
    name = f"rtd{os.getpid() % 100_000}"
    extra = {
        "veth": ("peer", "name", f"{name}p"),
        "vxlan": ("id", "16777215", "dstport", str(VXLAN_PORT), "local", "127.0.0.1"),
    }
    # In a namespace of its own: nothing of the machine's network is touched, and all is gone with the command.
    return _run("unshare", "--net", "ip", "link", "add", name, "type", kind, *extra.get(kind, ()))


def _qemu() -> str:
    try:
        command = ("qemu-system-x86_64", "--version")
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=True)  # noqa: S603  # our own words
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
    version = re.search(r"version (\S+)", done.stdout)
    return version[1] if version else "unknown"


def _run(*command: str) -> bool:
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT, check=False)  # noqa: S603  # our own words
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _output(*command: str) -> Any:
    try:
        return json.loads(_text(*command) or "[]")
    except ValueError:
        return []


def _text(*command: str) -> str:
    """Returns the output of a command; empty when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT, check=True)  # noqa: S603  # our own words
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace")


def agent_units(listing: str) -> list[dict[str, str]]:
    """Returns the properties of the services that there are, from the output of `systemctl show`; pure."""
    units: dict[str, dict[str, str]] = {}
    for block in listing.split("\n\n"):
        unit = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if unit.get("LoadState") == "loaded":
            units[unit.get("Id", "")] = unit
    return list(units.values())


def _uplink_mtu() -> int | None:
    routes = _output("ip", "-j", "-4", "route", "show", "default")
    device = next((route.get("dev") for route in routes), None)
    if device is None:
        return None
    try:
        return int(Path(f"/sys/class/net/{device}/mtu").read_text())
    except (OSError, ValueError):
        return None


def _routes() -> list[str]:
    routes = _output("ip", "-j", "-4", "route", "show", "table", "main")
    return sorted({str(route["dst"]) for route in routes if str(route.get("dst", "default")) != "default"})


def _is_synchronized() -> bool | None:
    """Returns the state of the kernel's clock: adjtimex reports 5, or the flag STA_UNSYNC,
    while no daemon disciplines it.
    """
    if not hasattr(socket, "AF_UNIX") or not hasattr(time, "CLOCK_REALTIME"):
        return None
    import ctypes  # noqa: PLC0415  # only for this

    buffer = ctypes.create_string_buffer(512)
    state = int(ctypes.CDLL(None, use_errno=True).adjtimex(buffer))
    return None if state < 0 else state != 5  # noqa: PLR2004  # TIME_ERROR
