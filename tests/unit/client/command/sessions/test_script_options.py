"""What the lines of a job script ask for: options that mean the same, and words for all others."""

from __future__ import annotations

import shlex

import pytest

from retinue.client.command.sessions.script_options import Array, parse_array, read_script
from retinue.client.command.slurm_scripts.sbatch_grammar import OptionValue, from_environment
from retinue.client.errors import UsageError


def arguments(*lines: str) -> list[str]:
    script = read_script("\n".join(["#!/bin/sh", *lines, "true", "#SBATCH --time=99"]), "job.sh")
    return list(script.arguments)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--job-name=Train_A", "--job-name Train_A"),
        ("-J a", "--job-name a"),
        ("-t 10", "--time-limit 600s"),
        ("--time=1:30", "--time-limit 90s"),
        ("--time=1:30:00", "--time-limit 5400s"),
        ("--time=2-0", "--time-limit 172800s"),
        ("--time=1-02:03", "--time-limit 93780s"),
        ("--time=0", ""),
        ("--comment='a # b' --hold # why", "--label 'comment=a # b' --hold"),
        ("--hold #--time=5", "--hold"),
        ("--time=UNLIMITED", ""),
        ("--time=1-02:00:00", "--time-limit 93600s"),
        ("--container-image=nvcr.io#nvidia/pytorch:24.05-py3", "--image nvcr.io/nvidia/pytorch:24.05-py3"),
        ("--container-image=docker://busybox", "--image busybox"),
        ("--container-mounts=/a:/b,/c,/d:/e:ro+rbind --container-mounts=/a:/f", "--mount /a:/f:rw"),
        ("--container-mounts=/a:/b,/c,/d:/e:ro+rbind", "--mount /a:/b:rw --mount /c:/c:rw --mount /d:/e"),
        ("--nodelist=n[1-3,5],m", "--agent n1 --agent n2 --agent n3 --agent n5 --agent m --strict-agents"),
        ("--nodelist=gpu[08-10]-a", "--agent gpu08-a --agent gpu09-a --agent gpu10-a --strict-agents"),
        ("--export=LANG,A=1", "-e LANG -e A=1"),
        ("--begin=now+2weeks", "--earliest-start-time 1209600s"),
        ("-c4 --mem=4G", "--slots cpu=4,mem=4g"),
        ("--mem=512", "--slots mem=512m"),
        ("--tmp=20G", "--slots disk=20g"),
        ("-n 2 --tmp=1024", "--slots cpu=2,disk=1g"),
        ("-c 4 --mem-per-cpu=2GB", "--slots cpu=4,mem=8g"),
        ("--gres=gpu:2", "--slots cuda.device=2"),
        ("--gres=gpu", "--slots cuda.device=1"),
        ("--gpus=1", "--slots cuda.device=1"),
        ("-n 4 --gpus-per-task=1", "--slots cuda.device=1 --size 4 --mode multi-node"),
        ("-N 1 -n 4", "--slots cpu=4"),
        ("-N 2 -n 8 -c 2", "--slots cpu=8 --size 2 --mode multi-node"),
        ("-N 2 --ntasks-per-node=4 --gres=gpu:4", "--slots cpu=4,cuda.device=4 --size 2 --mode multi-node"),
        ("-n 8 --ntasks-per-node=4", "--slots cpu=4 --size 2 --mode multi-node"),
        ("-n 4 --mem=1G", "--slots cpu=4,mem=1g"),
        ("-n 4 --gpus=2", "--slots cpu=4,cuda.device=2"),
        ("-N 2 --gpus=8 --cpus-per-gpu=3", "--slots cpu=12,cuda.device=4 --size 2 --mode multi-node"),
        ("--gpus=8 --gpus-per-node=4", "--slots cuda.device=4 --size 2 --mode multi-node"),
        ("--gpus=1 --ntasks-per-gpu=2 --mem-per-gpu=2G", "--slots cpu=2,mem=2g,cuda.device=1"),
        ("-N 2 -n 1", ""),
        ("--mem=1.5G", "--slots mem=1536m"),
        ("--mem-per-cpu 100K -c 3", "--slots cpu=3,mem=300k"),
        ("--nodes=2 --mem=1G", "--slots mem=1g --size 2 --mode multi-node"),
        ("--nodes=2 --ntasks-per-node=1", "--size 2 --mode multi-node"),
        ("--dependency=afterok:a:b,afterany:c", "--depends-on a --depends-on b --after c"),
        ("--dependency=aftercorr:a,afterok:b", "--depends-on-each a --depends-on b"),
        ("-d afternotok:12:13", "--after-failure 12 --after-failure 13"),
        ("-d singleton,afterok:a", "--after-label slurm.job-name --depends-on a"),
        ("--begin=now+1hour", "--earliest-start-time 3600s"),
        ("-H", "--hold"),
        ("--signal=USR1", "--signal started:USR1@60s"),
        ("--signal=B:SIGUSR1@120", "--signal USR1@120s"),
        ("--signal 10@90", "--signal started:USR1@90s"),
        ("-p gpu -A team", "--group gpu --project team"),
        ("--nodelist=a,b", "--agent a --agent b --strict-agents"),
        ("--export=NONE", ""),
        ("--export=A=1,B=2", "-e A=1 -e B=2"),
        ("--requeue --comment=x # why", "--retry 3 --label comment=x"),
        ("--begin=now", ""),
        ("--nice", "--priority 9"),
        ("--nice=250", "--priority 7"),
        ("--priority=50", "--priority 50"),
        ("-C x86_64", "--arch x86_64"),
        ("-d 12:13_4", "--after 12 --after 13_4"),
        ("--partit day,night --ntasks_per_node 1", "--group day"),
        ("-HQ -J a", "--hold --quiet --job-name a"),
    ],
)
def test_options_of_sbatch(line: str, expected: str) -> None:
    assert arguments(f"#SBATCH {line}") == shlex.split(expected)


def test_ours_come_last_and_the_rest_of_the_script_does_not_count() -> None:
    found = arguments(
        "#RETINUE --slots cpu=1 --label 'a=b c'", "# a remark", "", "#SBATCH -c 2", "#SBATCHES -c 9", "#SBATCH -c 3"
    )
    assert found == ["--slots", "cpu=3", "--slots", "cpu=1", "--label", "a=b c"]


def test_what_has_no_meaning_is_named() -> None:
    script = read_script("#!/bin/sh\n#SBATCH --qos=x --mail-user=me\n#SBATCH --array=1,3%1\n", "job.sh")
    assert [(one.location, one.option) for one in script.ignored] == [
        ("job.sh:2: ", "--qos"),
        ("job.sh:2: ", "--mail-user"),
    ]
    assert (script.array, script.arguments) == (Array((1, 3), 1), [])


_MANY = "#!/bin/sh\n#SBATCH --exclusive --reservation=x --time=5\n#SBATCH --licenses=a:1 --frob=2 -C ib\ntrue\n"


def test_all_that_has_no_counterpart_is_named_at_once() -> None:
    with pytest.raises(UsageError) as refused:
        read_script(_MANY, "job.sh", typed=[OptionValue("uid", "1000")])
    lines = str(refused.value).splitlines()
    assert [line.split(" ")[:2] for line in lines] == [
        ["job.sh:2:", "--exclusive"],
        ["job.sh:2:", "--reservation"],
        ["job.sh:3:", "--licenses"],
        ["job.sh:3:", "--frob"],
        ["job.sh:3:", "--constraint=ib:"],
        ["--uid", "of"],
    ]


def test_what_has_no_counterpart_can_be_left_out() -> None:
    script = read_script(_MANY, "job.sh", ignore_unknown=True)
    assert (script.arguments, len(script.ignored)) == (["--time-limit", "300s"], 5)
    # What is wrong stays wrong.
    with pytest.raises(UsageError, match="--time=soon"):
        read_script("#!/bin/sh\n#SBATCH --time=soon --exclusive", "job.sh", ignore_unknown=True)


def test_options_go_before_those_of_the_environment_and_of_the_script() -> None:
    environment = from_environment({"SBATCH_TIMELIMIT": "2", "SBATCH_PARTITION": "day", "SBATCH_REQUEUE": "1"})
    found = read_script(
        "#!/bin/sh\n#SBATCH -t 1 -n 4\n", "job.sh", environment=environment, typed=[OptionValue("time", "3")]
    ).arguments
    assert found == [
        *("--size", "4", "--mode", "multi-node", "--time-limit", "60s"),
        *("--time-limit", "180s", "--group", "day", "--retry", "3"),
    ]
    fewer = read_script("#!/bin/sh\n#SBATCH -n 4\n", "job.sh", typed=[OptionValue("ntasks", "1")]).arguments
    assert fewer[-2:] == ["--size", "1"]


def test_options_of_ours_stand_among_those_of_sbatch() -> None:
    script = read_script("#!/bin/sh\n#SBATCH --mount=/a:/a --keep\n", "job.sh", own={"mount": True, "keep": False})
    assert script.arguments == ["--mount", "/a:/a", "--keep"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--exclusive", "--exclusive of sbatch has no counterpart"),
        ("-C ib", "--constraint"),
        ("-Z", "-Z is no option"),
        ("-t", "-t needs a value"),
        ("--hold=1", "--hold has no value"),
        ("--mem-=1", "or --mem-bind"),
        ("--nice=-5", "raises a priority"),
        ("--priority=1000", "0 to 100"),
        ("--frob=1", "--frob"),
        ("job.sh", "is not an option"),
        ("--time=soon", "--time=soon"),
        ("--container-image=/data/image.sqsh", "comes from a registry"),
        ("hetjob", "hetjob: kernels of a job have one size"),
        ("--nodelist=n[1-", "ranges of them"),
        ("--nodelist=n[a-b]", "ranges of them"),
        ("--nodelist=n[3-1]", "no range"),
        ("--mem=0", "--mem=0"),
        ("--mem=lots", "--mem=lots"),
        ("-N 2 --gpus=3", "--gpus=3 is not the same number"),
        ("-n 0", "--ntasks=0"),
        ("--gres=gpu:a100:2", "kinds of GPUs"),
        ("--gres=tmpfs:10", "only GPUs"),
        ("--dependency=after:12", "afterok:SESSION"),
        ("--dependency=afterok:a?afterok:b", "all of them"),
        ("--begin=soon", "--begin=soon"),
        ("--signal=R:USR1@60", "B:USR1@60"),
        ("--signal=99", "no signal 99"),
        ("--job-name=", "letters or digits"),
        ("--array=0-", "is not an index"),
        ("'", "No closing quotation"),
    ],
)
def test_what_would_mean_something_else_is_refused(line: str, words: str) -> None:
    with pytest.raises(UsageError, match=r"^job\.sh:") as refused:
        arguments(f"#SBATCH {line}")
    assert words in str(refused.value)


def test_a_script_names_its_interpreter() -> None:
    with pytest.raises(UsageError, match="interpreter"):
        read_script("echo hello", "job.sh")


@pytest.mark.parametrize(
    ("text", "indices", "at_a_time"),
    [
        ("0-3", (0, 1, 2, 3), None),
        ("7", (7,), None),
        ("1,3,7-11:2,3%2", (1, 3, 7, 9, 11), 2),
        ("0-9999", tuple(range(10_000)), None),
    ],
)
def test_arrays(text: str, indices: tuple[int, ...], at_a_time: int | None) -> None:
    assert parse_array(text) == Array(indices, at_a_time)


@pytest.mark.parametrize(
    "text", ["", "a", "3-1", "0-10000", "0-9%", "0-9%0", "0-9%x", "1-5:0", "-1", "1,,2", "0-99999999999999"]
)
def test_wrong_arrays(text: str) -> None:
    with pytest.raises(UsageError, match="array"):
        parse_array(text)
