"""GNU parallel and xargs over `retinue run`: each session's output, errors and exit code come to whom they belong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.login import Shell

pytestmark = pytest.mark.asyncio(loop_scope="session")

RUN = "retinue run -q --slots cpu=0.1,mem=32m -- sh -c"


async def test_parallel_logs_every_exit_code(shell: Shell) -> None:
    body = 'echo "out $0"; echo "error $0" >&2; exit $(($0 % 3))'
    loop = await shell.run(f"seq 18 | parallel -q -j 6 -k --joblog log {RUN} {body!r} {{}}")
    # parallel itself ends with the number of jobs that failed.
    assert (loop.code, loop.out) == (12, "".join(f"out {number}\n" for number in range(1, 19))), loop
    assert [line for line in loop.err.splitlines() if line.startswith("error")] == [f"error {n}" for n in range(1, 19)]
    rows = [line.split("\t") for line in (shell.directory / "log").read_text().splitlines()[1:]]
    assert {int(row[0]): int(row[6]) for row in rows} == {number: number % 3 for number in range(1, 19)}


async def test_xargs_says_that_one_failed(shell: Shell) -> None:
    loop = await shell.run(f"""seq 6 | xargs -P 3 -I@ {RUN} 'echo "out @"; [ @ != 4 ]'""")
    assert (loop.code, sorted(loop.out.splitlines())) == (123, [f"out {number}" for number in range(1, 7)]), loop
