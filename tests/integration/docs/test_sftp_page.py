"""Every block of commands of docs/how-to/sftp.md, typed as it stands there, and those of its sentences that can be."""

from __future__ import annotations

import asyncio
import os
import pwd
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.devtools.cluster import free_ports
from retinue.manager.v1 import fleet_service_pb2
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "sftp.md"
BLOCK = re.compile(r"^ *```sh\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
TYPED = "> "
"""What lines of the page begin with here; others are what a reader does besides."""
SCRIPT = r"""
> retinue run --type system -n files --mount /srv/data:/data:rw --mount /srv/public:/public
> retinue sftp files
echo result > results.csv
> retinue ssh-config files --write
> scp results.csv files.retinue:
test "$(cat /srv/data/results.csv)" = result
mkdir results
cp results.csv results/by-rsync.csv
> rsync -a results/ files.retinue:results/
test "$(cat /srv/data/results/by-rsync.csv)" = result
mkdir ~/data
> sshfs files.retinue:/data ~/data
test "$(cat ~/data/results.csv)" = result
> fusermount3 -u ~/data
> retinue sftp-mount files:/data ~/data
test "$(cat ~/data/results.csv)" = result
> fusermount3 -u ~/data
ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519
> retinue keys add ~/.ssh/id_ed25519.pub
> retinue keys ls
> retinue keys rm SHA256:…
> retinue logs files | grep 'Accepted publickey for work from 127'
retinue rm --wait files
> retinue groups update default --add-mount-root '/srv/home/{user}:rw'
> retinue run --type system -n home --mount '/srv/home/{user}:/files:rw'
> retinue sftp --listen 2222 home
retinue rm --wait home
wait
"""

# tests/integration/client/command/inside/test_ssh_hosts.py and tests/programs/test_ssh_programs.py do what these do.
OF_GANGS = {
    "retinue run -d -n training --type interactive --size 2 --mode multi-node",
    "retinue ssh-config training --write",
    "rsync -a data/ sub1.training.retinue:data/",
    "ansible -i training.retinue,sub1.training.retinue all -m ping",
    "ssh training.retinue 'mpirun --host main1,sub1 hostname'",
}


def test_no_block_of_the_page_is_left_out() -> None:
    typed = {line.removeprefix(TYPED) for line in SCRIPT.splitlines() if line.startswith(TYPED)}
    blocks = {line.strip() for block in BLOCK.findall(PAGE.read_text()) for line in block.splitlines()}
    assert blocks
    assert blocks - typed == OF_GANGS


@pytest.fixture
def ssh_directory() -> Path:
    """Where OpenSSH's clients look for files of this user, whatever $HOME says. It stays: another run may have
    mounted its own on it, which would go with it.
    """
    directory = Path(pwd.getpwuid(os.getuid()).pw_dir) / ".ssh"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


@pytest.mark.asyncio(loop_scope="session")
async def test_the_page(client: Client, cluster: Cluster, ssh_directory: Path, tmp_path: Path) -> None:
    home, served, settings = tmp_path / "home", tmp_path / "srv", cluster.settings
    me = (await client.users.caller()).name
    for directory in (
        home,
        home / ".ssh",
        served,
        *(served / name for name in ("data", "public", "home", f"home/{me}")),
    ):
        directory.mkdir()
        directory.chmod(0o777)
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(path.stat().st_mode | 0o055)
    roots = [fleet_service_pb2.MountRoot(path=str(served), writable=True)]
    await client.resource_groups.update("default", mount_roots=roots)
    # A reader has the directories and the port; tests run beside others.
    script = SCRIPT.replace("/srv/", f"{served}/").replace("2222", str(free_ports()[0]))
    script = script.replace("SHA256:…", "$(ssh-keygen -lf ~/.ssh/id_ed25519.pub | cut -d' ' -f2)")
    lines = [line.removeprefix(TYPED) for line in script.splitlines()]
    lines = [f"{line} &" if "--listen" in line else line for line in lines]
    private = [f"mount --bind ~/.ssh {ssh_directory}", "cd"]
    process = await asyncio.create_subprocess_exec(
        *("unshare", "--mount", "bash", "-eux", "-c", "\n".join((*private, *lines))),
        env={
            **{key: value for key, value in os.environ.items() if not key.startswith("RETINUE_")},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(home),
            "RETINUE_ENDPOINT": settings.endpoint,
            "RETINUE_TOKEN": settings.token or "",
            "RETINUE_CA": settings.ca or "",
        },
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        out, _ = await process.communicate()
        assert process.returncode == 0, out.decode(errors="replace")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        async for session in client.sessions.list():
            await session.terminate(force=True)
            await session.wait_ended(NEVER)
        await client.resource_groups.update("default", mount_roots=[])
