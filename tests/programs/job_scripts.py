"""The scripts in `jobs`, and what each writes to its files, by their names; %j is the job's number."""

from __future__ import annotations

from pathlib import Path

SCRIPTS = Path(__file__).with_name("jobs")

ARGUMENTS = {"arguments": "'a b' c"}
CODES = {"errors": 3}
"""Exit codes other than 0."""
WRITTEN: dict[str, dict[str, str]] = {
    "serial": {"serial-%j.out": "job serial, 1 task, 1 node\nsum 10\n"},
    "openmp": {"openmp.out": "threads 2\n"},
    "no-multithreading": {"no-multithreading.out": "step of 2 processors\n"},
    "tasks-on-nodes": {
        "tasks-on-nodes.out": "4 tasks on 2 nodes, 2(x2)\n"
        "task 0 is 0 on node 0\ntask 1 is 1 on node 0\ntask 2 is 0 on node 1\ntask 3 is 1 on node 1\n"
    },
    "tasks-anywhere": {"tasks-anywhere.out": "0: of 3\n1: of 3\n2: of 3\n"},
    "mpi-mpirun": {"mpi-mpirun.out": "size 2 sum 3\n"},
    "hybrid": {"hybrid.out": "rank 0, threads 2\nrank 1, threads 2\n"},
    "rendezvous": {"rendezvous.out": "2 hosts\n0 of 2 finds the first\n1 of 2 finds the first\n"},
    "array": {
        "array-1.out": "1 of 1 to 3: red\n",
        "array-2.out": "2 of 1 to 3: green\n",
        "array-3.out": "3 of 1 to 3: blue\n",
    },
    "array-throttled": {
        "array-throttled-0000.out": "0, one of 3\n",
        "array-throttled-0005.out": "10, one of 3\n",
        "array-throttled-0010.out": "20, one of 3\n",
    },
    "array-blocks": {
        "array-blocks-0.out": "0 to 9: 45\n",
        "array-blocks-1.out": "10 to 19: 145\n",
        "array-blocks-2.out": "20 to 29: 245\n",
    },
    "checkpoint": {"checkpoint.out": "saved\n"},
    "checkpoint-retry": {"checkpoint-retry.out": "step 0\ndone\n"},
    "preemptible": {"preemptible.out": "run 0\n"},
    "many-tasks": {"many-tasks.out": "1\n4\n9\n16\n"},
    "multi-prog": {"multi-prog.out": "controller\nworker 1 of 2\nworker 2 of 2\n"},
    "xargs": {"xargs.out": "".join(f"file {number}\n" for number in range(1, 6))},
    "scratch": {"scratch.out": "3 lines are back\n", "scratch.numbers": "1\n2\n3\n"},
    "environment": {"environment.out": "seed 42, secret stays outside\n"},
    "python": {"python.out": "python in job python\n"},
    "arguments": {"arguments.out": "2 arguments: a b\n"},
    "errors": {"errors.out": "this is output\n", "errors.err": "this is an error\n"},
    "mail": {"mail.out": "no mail\n"},
}
