"""The paths of the node that native process kernels see: a list of what programs need, and what an agent adds to it.

What is not on the list does not exist inside. It holds programs, libraries and the settings of libraries; neither data
nor logs, nor the settings of the node's own services.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

PROGRAM_DIRECTORIES = (
    *("/bin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/sbin", "/usr"),
    # Where distributions that keep each package apart have them.
    *("/gnu/store", "/nix/store"),
)
SETTINGS = (
    # The loader, names of services and languages, time.
    *("gai.conf", "host.conf", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld.so.preload", "networks"),
    *("ethertypes", "nsswitch.conf", "protocols", "rpc", "services"),
    *("ld-musl-aarch64.path", "ld-musl-x86_64.d", "ld-musl-x86_64.path"),
    *("adjtime", "locale.alias", "locale.conf", "locale.gen", "localtime", "timezone"),
    # Which system it is, and which of several programs of a kind it uses.
    *("alpine-release", "debian_version", "lsb-release", "os-release", "redhat-release", "system-release"),
    *("alternatives", "java", "java-11-openjdk", "java-17-openjdk", "java-21-openjdk", "maven"),
    # Certificates.
    *("ca-certificates", "ca-certificates.conf", "crypto-policies", "gnutls", "pki", "ssl"),
    # Shells, terminals and editors.
    *("DIR_COLORS", "bash.bashrc", "bashrc", "bash_completion.d", "csh.cshrc", "csh.login", "fish"),
    *("inputrc", "login.defs", "nanorc", "profile", "profile.d", "screenrc", "shells", "skel", "terminfo", "tmux.conf"),
    *("vim", "vimrc", "zsh", "zshenv", "zshrc"),
    # Programs and their languages.
    *("R", "conda", "gitconfig", "ipython", "julia", "jupyter", "lua", "matplotlibrc", "perl", "php", "python"),
    *("python2.7", "python3", "ruby", "texmf"),
    *("python3.9", "python3.10", "python3.11", "python3.12", "python3.13", "python3.14"),
    *("ImageMagick-6", "ImageMagick-7", "X11", "fonts", "gtk-2.0", "gtk-3.0", "gtk-4.0", "libpaper.d", "papersize"),
    *("magic", "magic.mime", "mailcap", "mime.types", "sgml", "xml", "manpath.config", "odbcinst.ini"),
    *("gdb", "groff", "imagemagick", "ghostscript", "libreoffice", "texdoctk", "xdg/menus"),
    # Scientific computing: modules, MPI, fast networks, GPUs' interfaces.
    *("environment-modules", "lmod", "modulefiles", "scl", "easybuild.d", "spack"),
    *("libibverbs.d", "mpich", "openmpi", "openmpi-x86_64", "pmix", "prte", "pmix-mca-params.conf", "rdma", "ucx"),
    *("OpenCL", "glvnd", "vulkan", "tbb"),
    # Of ssh, what clients read.
    *("ssh/ssh_config", "ssh/ssh_config.d", "ssh/ssh_known_hosts"),
)
"""Names under /etc. Those are not among them that often hold passwords, of package indexes and proxies."""
BUILT = ("/var/cache/fontconfig", "/var/cache/retinue", "/var/lib/R", "/var/lib/ghc", "/var/lib/texmf")
"""What is made from programs on the node, and programs that an agent has built."""
DEFAULT = (*PROGRAM_DIRECTORIES, *(f"/etc/{name}" for name in SETTINGS), *BUILT)
OWN = ("/dev", "/home/work", "/proc", "/run/kernel", "/sys", "/tmp")  # noqa: S108
"""What a kernel has one of its own of."""
TO_SHOW = "--show"
"""The agent's option that adds a path."""


MOUNTED_APART = ("/usr/local",)
"""Directories beneath those that may be mounts of their own on the node."""


@dataclass(frozen=True, slots=True)
class VisiblePaths:
    """Absolute paths of the node that kernels see, with all beneath them on the same file system: `shown`, none beneath
    another; `apart`, which are beneath those, and are shown where they are mounts of their own; and what kernels do not
    see of it all, `hidden`.
    """

    shown: tuple[str, ...]
    apart: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()

    @classmethod
    def of(cls, added: Iterable[str], hidden: Iterable[str]) -> VisiblePaths:
        """Returns the usual paths and those `added`, without what is `hidden`: that comes first. Pure.

        All of them are normal and absolute.
        """
        concealed, wanted = sorted(set(hidden)), {*DEFAULT, *MOUNTED_APART, *added}
        shown: list[str] = []
        apart: list[str] = []
        for path in sorted(wanted):
            if not is_beneath(path, concealed):
                (apart if is_beneath(path, shown) else shown).append(path)
        return cls(tuple(shown), tuple(apart), tuple(concealed))

    def why_missing(self, path: str, targets: Iterable[str]) -> str:
        """Returns what to do that a kernel with mounts at `targets` sees a path of the node; empty where it may be
        there, as the kernel's own or the node's. Pure.
        """
        normal = str(PurePosixPath(path))
        if not normal.startswith("/") or ".." in normal.split("/") or is_beneath(normal, (*OWN, *targets)):
            return ""
        if is_beneath(normal, self.hidden):
            return f"{path} is not in the kernel: the agent's option --hide hides it"
        if is_beneath(normal, self.shown) or any(is_beneath(each, (normal,)) for each in (*self.shown, *OWN)):
            return ""
        return (
            f"{path} is not in the kernel: of the node, it has programs and libraries only. "
            f"A mount gives it data; the agent's option `{TO_SHOW} PATH` shows more of the node"
        )


def is_beneath(path: str, others: Iterable[str]) -> bool:
    """Returns whether a path is one of the others, or beneath one. All are normal and absolute. Pure."""
    return any(path == other or path.startswith(f"{other.rstrip('/')}/") for other in others)


def check_shown(paths: Iterable[str]) -> None:
    """Raises ValueError where kernels cannot be shown one of these paths of the node."""
    for path in paths:
        normal = PurePosixPath(path)
        if not normal.is_absolute() or ".." in normal.parts or "\0" in path:
            raise ValueError(f"{TO_SHOW} {path}: an absolute path without `..` is needed")
        if normal == PurePosixPath("/"):
            raise ValueError(f"{TO_SHOW} /: name directories; all of the node cannot be shown")
        if is_beneath(str(normal), OWN):
            raise ValueError(f"{TO_SHOW} {path} has no effect: kernels have one of their own")
