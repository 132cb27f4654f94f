"""The command with which a job begins in its kernel: its script becomes a file, and finds variables and files."""

from __future__ import annotations

SCRIPT_VARIABLE = "JOB_SCRIPT"
"""The variable in which a script travels to where it runs."""
OUTPUT, ERROR, INPUT, OPEN_MODE = "JOB_OUTPUT", "JOB_ERROR", "JOB_INPUT", "JOB_OPEN_MODE"
"""Variables with the patterns of a job's files, as absolute paths, and `append` or `truncate`."""
ARRAY_OFFSET = "JOB_ARRAY_OFFSET"
"""The variable with the place of a session in its array: numbers of an array follow each other."""
TIME_LIMIT = "JOB_TIME_LIMIT"
"""The variable with the seconds of the time limit."""
_STEPS = "/run/kernel/srun"

# The script travels in the environment: arguments are shown to all who see the session. Variables of Slurm would have
# MPI start its processes by srun, which has no PMI: it does so by ssh.
START = f"""\
d=$(mktemp -d "${{TMPDIR:-/tmp}}/job.XXXXXX" 2>/dev/null || mktemp -d "${{HOME:-.}}/job.XXXXXX") &&
f="$d/$0" && printf '%s' "${SCRIPT_VARIABLE}" >"$f" && chmod 700 "$f" ||
{{ echo "retinue: there is no space for the script" >&2; exit 126; }}
unset {SCRIPT_VARIABLE}
n=${{BACKENDAI_CLUSTER_SIZE:-1}} h=${{BACKENDAI_CLUSTER_HOSTS:-main1}} m=${{BACKENDAI_CLUSTER_HOST:-main1}}
j=${{BACKENDAI_SESSION_NUMBER:-${{BACKENDAI_SESSION_ID:-}}}} s=$(date +%s) e=${{RETINUE_ATTEMPT:-1}}
if [ "$n" = 1 ]; then x=; else x="(x$n)"; fi
: "${{SLURM_JOB_ID:=$j}}" "${{SLURM_NTASKS:=$n}}" "${{SLURM_JOB_NUM_NODES:=$n}}" "${{SLURM_JOB_NODELIST:=$h}}"
: "${{SLURM_TASKS_PER_NODE:=1$x}}" "${{SLURM_CPUS_ON_NODE:=$(nproc 2>/dev/null || echo 1)}}" "${{TMPDIR:=/tmp}}"
: "${{SLURM_JOB_CPUS_PER_NODE:=$SLURM_CPUS_ON_NODE$x}}" "${{SLURM_JOB_USER:=$(id -un 2>/dev/null)}}"
SLURM_JOBID=$SLURM_JOB_ID SLURM_NPROCS=$SLURM_NTASKS SLURM_NNODES=$SLURM_JOB_NUM_NODES
SLURM_NODELIST=$SLURM_JOB_NODELIST SLURMD_NODENAME=$m SLURM_TOPOLOGY_ADDR=$m SLURM_TOPOLOGY_ADDR_PATTERN=node
SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_GTIDS=0 SLURM_TASK_PID=$$ SLURM_CLUSTER_NAME=retinue
SLURM_JOB_UID=$(id -u) SLURM_JOB_GID=$(id -g) SLURM_JOB_START_TIME=$s ENVIRONMENT=BATCH
[ -z "${{{TIME_LIMIT}:-}}" ] || export SLURM_JOB_END_TIME=$((s + {TIME_LIMIT}))
[ -z "${{{ARRAY_OFFSET}:-}}" ] || export SLURM_ARRAY_JOB_ID="${{SLURM_ARRAY_JOB_ID:-$((${{BACKENDAI_SESSION_NUMBER:-0}} - {ARRAY_OFFSET}))}}"
[ -z "${{CUDA_VISIBLE_DEVICES:-}}" ] || export SLURM_JOB_GPUS="$CUDA_VISIBLE_DEVICES"
[ "$e" -le 1 ] || export SLURM_RESTART_COUNT=$((e - 1))
: "${{OMPI_MCA_plm:=rsh}}" "${{PRTE_MCA_plm:=ssh}}" "${{HYDRA_BOOTSTRAP:=ssh}}"
export SLURM_JOB_ID SLURM_JOBID SLURM_NTASKS SLURM_NPROCS SLURM_JOB_NUM_NODES SLURM_NNODES SLURM_JOB_NODELIST \
  SLURM_NODELIST SLURMD_NODENAME SLURM_TOPOLOGY_ADDR SLURM_TOPOLOGY_ADDR_PATTERN SLURM_TASKS_PER_NODE \
  SLURM_CPUS_ON_NODE SLURM_JOB_CPUS_PER_NODE SLURM_JOB_USER SLURM_JOB_UID SLURM_JOB_GID SLURM_JOB_START_TIME \
  SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_GTIDS SLURM_TASK_PID SLURM_CLUSTER_NAME ENVIRONMENT TMPDIR \
  OMPI_MCA_plm PRTE_MCA_plm HYDRA_BOOTSTRAP
i=${{{INPUT}:-}} o=${{{OUTPUT}:-}} r=${{{ERROR}:-}} a=${{{OPEN_MODE}:-}}
unset {INPUT} {OUTPUT} {ERROR} {OPEN_MODE} {ARRAY_OFFSET} {TIME_LIMIT}
named() {{ {_STEPS} --retinue-file "$1" || {{ echo "retinue: this node cannot name the job's files" >&2; exit 1; }}; }}
made() {{
  [ "$a" = append ] || [ ! -f "$1" ] || : 2>/dev/null >"$1"
  (: >>"$1") 2>/dev/null || {{ echo "retinue: the file $1 cannot be written" >&2; exit 1; }}
  echo "retinue: $2 in the file $1" >&2
}}
if [ -n "$i" ]; then
  i=$(named "$i") || exit 1
  (: <"$i") 2>/dev/null || {{ echo "retinue: the file $i cannot be read" >&2; exit 1; }}
  exec <"$i"
fi
if [ -n "$o" ]; then o=$(named "$o") || exit 1; fi
if [ -n "$r" ]; then r=$(named "$r") || exit 1; fi
if [ -n "$o" ] && [ "${{r:-$o}}" = "$o" ]; then
  made "$o" "the job's output is" && exec >>"$o" 2>&1
else
  if [ -n "$o" ]; then made "$o" "the job's output is" && exec >>"$o"; fi
  if [ -n "$r" ]; then made "$r" "the job's errors are" && exec 2>>"$r"; fi
fi
l=
read -r l <"$f"
case $l in
"#!"*)
  l=${{l#"#!"}} && l=${{l#"${{l%%[![:space:]]*}}"}} && l=${{l%%[[:space:]]*}}
  # The system would say that the script itself is missing.
  [ -z "$l" ] || [ -x "$l" ] ||
    {{ echo "retinue: $0 cannot start: $l is not in this image or on this node" >&2; exit 127; }}
  ;;
esac
exec "$f" "$@"
"""
"""The command of a batch session, for `sh -c`, with the script's name as $0 and its arguments."""
