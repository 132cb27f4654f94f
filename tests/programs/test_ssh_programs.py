"""Programs that reach kernels by OpenSSH, with the blocks of `retinue ssh-config`: rsync and Ansible."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.login import Shell

pytestmark = pytest.mark.asyncio(loop_scope="session")

# OpenSSH takes the home directory of the account, not that of the test.
CONFIG = "retinue ssh-config gang >config"
GANG = "retinue run -d -q --name gang --size 2 --mode multi-node --slots cpu=0.5,mem=200m -- sleep 1000"
PLAY = """
- hosts: all
  tasks:
  - copy: {content: "of {{ inventory_hostname }}", dest: "{{ ansible_env.HOME }}/greeting", mode: "0640"}
  - command: cat greeting
    args: {chdir: "{{ ansible_env.HOME }}"}
    register: said
    changed_when: false
  - assert: {that: "said.stdout == 'of ' + inventory_hostname and ansible_facts.system == 'Linux'"}
"""


async def test_rsync_there_and_back(shell: Shell) -> None:
    await shell(f"{GANG}; retinue wait --for running gang; {CONFIG}")
    await shell("mkdir sent; for i in $(seq 500); do echo $i >sent/'file '$i; done; ln -s 'file 1' sent/link")
    for host in ("gang.retinue", "sub1.gang.retinue"):
        await shell(f"rsync -a -e 'ssh -F config' sent/ {host}:'a b/'; rsync -a -e 'ssh -F config' {host}:'a b/' back/")
        assert await shell("diff -r --no-dereference sent back; rm -r back") == ""
    again = await shell("echo new >sent/new; rsync -ai -e 'ssh -F config' sent/ gang.retinue:'a b/'")
    assert [line.split(None, 1)[1] for line in again.splitlines()] == ["./", "new"]


async def test_ansible_configures_each_kernel(shell: Shell) -> None:
    await shell(f"{GANG}; retinue wait --for running gang; {CONFIG}")
    (shell.directory / "inventory").write_text("gang.retinue\nsub1.gang.retinue\n")
    (shell.directory / "play.yml").write_text(PLAY)
    play = "ansible-playbook -i inventory play.yml --ssh-common-args='-F config'"
    settings = {"ANSIBLE_PYTHON_INTERPRETER": "/usr/bin/python3", "ANSIBLE_NOCOLOR": "1"}
    first, second = await shell(play, **settings), await shell(play, **settings)
    assert first.count("changed=1 ") == second.count("changed=0 ") == 2, first + second
