/*
 * Runs a command once for each task of a step, in the kernels of this session: what srun of Slurm does in a job.
 *
 * Usage: srun [OPTIONS] COMMAND [ARGUMENTS...], with the options of srun(1). A kernel is a node, and is named by its
 * hostname. Tasks of this kernel are children of a child, those of others of the same program there, started by ssh
 * (step.h). One task in this kernel takes the place of this process. What cannot be done is refused.
 *
 * Called scontrol, it shows lists of hosts, and the job; called `srun --retinue-file PATTERN`, it prints the path for a
 * job's file.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <limits.h>
#include <pwd.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/socket.h>

#include "hostlist.h"
#include "ledger.h"
#include "step.h"

#define SSH "/run/kernel/bin/ssh"
#define STEP_OPTION "--retinue-step"
#define FILE_OPTION "--retinue-file"
#define LONGEST_LINE (32 * 1024)
#define RETRY_NS 200000000
#define KILL_GRACE_MS 5000
#define ALL_TASKS -1
#define NO_TASK -2

enum {
	NTASKS = 256, NODES, PER_NODE, CPUS, LABEL, UNBUFFERED, NODELIST, EXCLUDE, CHDIR, EXPORT, OUTPUT, ERROR_FILE, INPUT,
	OPEN_MODE, WAIT, KILL_ON_BAD_EXIT, DISTRIBUTION, RELATIVE, OVERCOMMIT, JOB_NAME, TIME_LIMIT, QUIET, VERBOSE,
	MULTI_PROG, PTY, JOB_ID, OVERLAP, GPUS_PER_TASK, MPI, NO_MEANING, REFUSED, HELP, VERSION,
};

/* A row for each option. Where `variable` is set and the option is not, its value counts. */
static const struct row {
	const char *name, *variable;
	char letter;
	int argument, meaning;
	const char *refusal;
} rows[] = {
	{"ntasks", "SLURM_NTASKS", 'n', 1, NTASKS, NULL},
	{"nodes", NULL, 'N', 1, NODES, NULL},
	{"ntasks-per-node", "SLURM_NTASKS_PER_NODE", 0, 1, PER_NODE, NULL},
	{"cpus-per-task", "SRUN_CPUS_PER_TASK", 'c', 1, CPUS, NULL},
	{"label", "SLURM_LABELIO", 'l', 0, LABEL, NULL},
	{"unbuffered", "SLURM_UNBUFFEREDIO", 'u', 0, UNBUFFERED, NULL},
	{"nodelist", NULL, 'w', 1, NODELIST, NULL},
	{"exclude", NULL, 'x', 1, EXCLUDE, NULL},
	{"chdir", "SLURM_WORKING_DIR", 'D', 1, CHDIR, NULL},
	{"export", "SLURM_EXPORT_ENV", 0, 1, EXPORT, NULL},
	{"output", "SLURM_STDOUTMODE", 'o', 1, OUTPUT, NULL},
	{"error", "SLURM_STDERRMODE", 'e', 1, ERROR_FILE, NULL},
	{"input", "SLURM_STDINMODE", 'i', 1, INPUT, NULL},
	{"open-mode", "SLURM_OPEN_MODE", 0, 1, OPEN_MODE, NULL},
	{"wait", "SLURM_WAIT", 'W', 1, WAIT, NULL},
	{"kill-on-bad-exit", "SLURM_KILL_BAD_EXIT", 'K', 2, KILL_ON_BAD_EXIT, NULL},
	{"distribution", "SLURM_DISTRIBUTION", 'm', 1, DISTRIBUTION, NULL},
	{"relative", NULL, 'r', 1, RELATIVE, NULL},
	{"overcommit", "SLURM_OVERCOMMIT", 'O', 0, OVERCOMMIT, NULL},
	{"job-name", NULL, 'J', 1, JOB_NAME, NULL},
	{"time", "SLURM_TIMELIMIT", 't', 1, TIME_LIMIT, NULL},
	{"quiet", NULL, 'Q', 0, QUIET, NULL},
	{"verbose", NULL, 'v', 0, VERBOSE, NULL},
	{"multi-prog", NULL, 0, 0, MULTI_PROG, NULL},
	{"pty", NULL, 0, 2, PTY, NULL},
	{"jobid", NULL, 0, 1, JOB_ID, NULL},
	{"overlap", "SLURM_OVERLAP", 0, 0, OVERLAP, NULL},
	{"gpus-per-task", "SLURM_GPUS_PER_TASK", 0, 1, GPUS_PER_TASK, NULL},
	{"mpi", "SLURM_MPI_TYPE", 0, 1, MPI, NULL},
	{"help", NULL, 'h', 0, HELP, NULL},
	{"usage", NULL, 0, 0, HELP, NULL},
	{"version", NULL, 'V', 0, VERSION, NULL},
	/* The kernels are there, with what they have; these change nothing of it. */
	{"account", NULL, 'A', 1, NO_MEANING, NULL},
	{"acctg-freq", NULL, 0, 1, NO_MEANING, NULL},
	{"comment", NULL, 0, 1, NO_MEANING, NULL},
	{"compress", NULL, 0, 2, NO_MEANING, NULL},
	{"constraint", NULL, 'C', 1, NO_MEANING, NULL},
	{"core-spec", NULL, 'S', 1, NO_MEANING, NULL},
	{"cores-per-socket", NULL, 0, 1, NO_MEANING, NULL},
	{"cpu-bind", NULL, 0, 1, NO_MEANING, NULL},
	{"cpu-freq", NULL, 0, 1, NO_MEANING, NULL},
	{"cpus-per-gpu", NULL, 0, 1, NO_MEANING, NULL},
	{"deadline", NULL, 0, 1, NO_MEANING, NULL},
	{"debugger-test", NULL, 0, 0, NO_MEANING, NULL},
	{"disable-status", NULL, 'X', 0, NO_MEANING, NULL},
	{"exact", NULL, 0, 0, NO_MEANING, NULL},
	{"exclusive", NULL, 0, 2, NO_MEANING, NULL},
	{"extra-node-info", NULL, 'B', 1, NO_MEANING, NULL},
	{"gpu-bind", NULL, 0, 1, NO_MEANING, NULL},
	{"gpu-freq", NULL, 0, 1, NO_MEANING, NULL},
	{"gpus", NULL, 'G', 1, NO_MEANING, NULL},
	{"gpus-per-node", NULL, 0, 1, NO_MEANING, NULL},
	{"gpus-per-socket", NULL, 0, 1, NO_MEANING, NULL},
	{"gres", NULL, 0, 1, NO_MEANING, NULL},
	{"gres-flags", NULL, 0, 1, NO_MEANING, NULL},
	{"hint", NULL, 0, 1, NO_MEANING, NULL},
	{"immediate", NULL, 'I', 2, NO_MEANING, NULL},
	{"licenses", NULL, 'L', 1, NO_MEANING, NULL},
	{"mail-type", NULL, 0, 1, NO_MEANING, NULL},
	{"mail-user", NULL, 0, 1, NO_MEANING, NULL},
	{"mem", NULL, 0, 1, NO_MEANING, NULL},
	{"mem-bind", NULL, 0, 1, NO_MEANING, NULL},
	{"mem-per-cpu", NULL, 0, 1, NO_MEANING, NULL},
	{"mem-per-gpu", NULL, 0, 1, NO_MEANING, NULL},
	{"mincpus", NULL, 0, 1, NO_MEANING, NULL},
	{"msg-timeout", NULL, 0, 1, NO_MEANING, NULL},
	{"network", NULL, 0, 1, NO_MEANING, NULL},
	{"nice", NULL, 0, 2, NO_MEANING, NULL},
	{"no-kill", NULL, 'k', 2, NO_MEANING, NULL},
	{"ntasks-per-core", NULL, 0, 1, NO_MEANING, NULL},
	{"ntasks-per-gpu", NULL, 0, 1, NO_MEANING, NULL},
	{"ntasks-per-socket", NULL, 0, 1, NO_MEANING, NULL},
	{"oversubscribe", NULL, 's', 0, NO_MEANING, NULL},
	{"partition", NULL, 'p', 1, NO_MEANING, NULL},
	{"preserve-env", NULL, 'E', 0, NO_MEANING, NULL},
	{"priority", NULL, 0, 1, NO_MEANING, NULL},
	{"profile", NULL, 0, 1, NO_MEANING, NULL},
	{"propagate", NULL, 0, 2, NO_MEANING, NULL},
	{"qos", NULL, 'q', 1, NO_MEANING, NULL},
	{"reservation", NULL, 0, 1, NO_MEANING, NULL},
	{"resv-ports", NULL, 0, 2, NO_MEANING, NULL},
	{"send-libs", NULL, 0, 2, NO_MEANING, NULL},
	{"slurmd-debug", NULL, 0, 1, NO_MEANING, NULL},
	{"sockets-per-node", NULL, 0, 1, NO_MEANING, NULL},
	{"spread-job", NULL, 0, 0, NO_MEANING, NULL},
	{"switches", NULL, 0, 1, NO_MEANING, NULL},
	{"thread-spec", NULL, 0, 1, NO_MEANING, NULL},
	{"threads", NULL, 'T', 1, NO_MEANING, NULL},
	{"threads-per-core", NULL, 0, 1, NO_MEANING, NULL},
	{"time-min", NULL, 0, 1, NO_MEANING, NULL},
	{"tmp", NULL, 0, 1, NO_MEANING, NULL},
	{"tres-bind", NULL, 0, 1, NO_MEANING, NULL},
	{"tres-per-task", NULL, 0, 1, NO_MEANING, NULL},
	{"use-min-nodes", NULL, 0, 0, NO_MEANING, NULL},
	{"wckey", NULL, 0, 1, NO_MEANING, NULL},
	{"whole", NULL, 0, 0, NO_MEANING, NULL},
	/* They would mean something, and what they mean is not there. */
	{"bcast", NULL, 0, 2, REFUSED, "kernels of a session see the same mounts: put the program into one"},
	{"begin", NULL, 'b', 1, REFUSED, "a step begins at once: the job can wait (retinue submit --begin)"},
	{"clusters", NULL, 'M', 1, REFUSED, "a step runs in the kernels of its own session"},
	{"container", NULL, 0, 1, REFUSED, "the image is the session's (retinue submit --image)"},
	{"dependency", NULL, 'd', 1, REFUSED, "a step begins at once: the job can wait (retinue submit --dependency)"},
	{"epilog", NULL, 0, 1, REFUSED, "call it after srun"},
	{"gid", NULL, 0, 1, REFUSED, "tasks run as the kernel's user"},
	{"het-group", NULL, 0, 1, REFUSED, "a session is one allocation"},
	{"hold", NULL, 'H', 0, REFUSED, "a step begins at once: the job can wait (retinue submit --hold)"},
	{"no-allocate", NULL, 'Z', 0, REFUSED, "a step runs in the kernels of its own session"},
	{"pack-group", NULL, 0, 1, REFUSED, "a session is one allocation"},
	{"prolog", NULL, 0, 1, REFUSED, "call it before srun"},
	{"signal", NULL, 0, 1, REFUSED, "the job takes it (retinue submit --signal)"},
	{"task-epilog", NULL, 0, 1, REFUSED, "have the tasks run a script that calls it"},
	{"task-prolog", NULL, 0, 1, REFUSED, "have the tasks run a script that calls it"},
	{"test-only", NULL, 0, 0, REFUSED, "kernels of a session are there already"},
	{"uid", NULL, 0, 1, REFUSED, "tasks run as the kernel's user"},
	{"x11", NULL, 0, 2, REFUSED, "there is no display"},
};
#define ROWS (sizeof rows / sizeof *rows)

static struct {
	const char *nodelist, *exclude, *directory, *exported, *out, *err, *in, *job_name, *job;
	int tasks, tasks_given, least_nodes, nodes, per_node, cpus, gpus, relative;
	int label, raw, append_files, kill_on_bad_exit, cyclic, pack, plane, overcommit, quiet, verbose, multi, pty, overlap;
	long wait, limit;
} asked = {.cpus = 1};

struct node {
	const char *name;
	int place, cpus, tasks, *ids, in, out, lost, ended;
	pid_t pid;
	struct buffer to, from;
	uint64_t sent, taken;
};

struct task {
	int node, program, ended, status;
	struct buffer line[2];
	int file[2];
};

struct program {
	char **words;
	int count;
};

static struct hosts hosts;
static struct node *nodes;
static struct task *tasks;
static struct program *programs;
static int node_count, program_count, job_nodes;
static uint32_t step_id;
static char job_id[128];
static int signal_pipe[2], ending, highest;

static void say(const char *kind, const char *format, va_list values)
{
	char text[2048];

	vsnprintf(text, sizeof text, format, values);
	fprintf(stderr, "srun: %s%s\n", kind, text);
}

static void note(const char *format, ...)
{
	va_list values;

	va_start(values, format);
	if (!asked.quiet)
		say("", format, values);
	va_end(values);
}

static void complain(const char *format, ...)
{
	va_list values;

	va_start(values, format);
	say("error: ", format, values);
	va_end(values);
}

static void refuse(const char *format, ...)
{
	va_list values;

	va_start(values, format);
	say("error: ", format, values);
	va_end(values);
	exit(1);
}

static const char *variable(const char *name, const char *otherwise)
{
	const char *value = getenv(name);

	return value != NULL && *value != '\0' ? value : otherwise;
}

/* ---- options ---- */

static int whole(const char *name, const char *value, int least)
{
	char *end;
	long number = strtol(value, &end, 10);

	if (!isdigit((unsigned char)*value) || *end != '\0' || number < least || number > 65536)
		refuse("--%s=%s: must be a number from %d", name, value, least);
	return (int)number;
}

/* Reads minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S; 0 for none. */
static long seconds_of(const char *value)
{
	long parts[4] = {0}, total;
	const char *at = value, *dash = strchr(value, '-');
	int count = 0;
	char *end;

	if (strcasecmp(value, "UNLIMITED") == 0 || strcasecmp(value, "INFINITE") == 0)
		return 0;
	for (; count < 4; at = end + 1) {
		parts[count] = strtol(at, &end, 10);
		if (!isdigit((unsigned char)*at) || (*end != '\0' && *end != ':' && !(*end == '-' && count == 0)))
			refuse("--time=%s: write minutes, HH:MM:SS, or D-HH:MM:SS", value);
		count++;
		if (*end == '\0')
			break;
	}
	if (dash != NULL)
		total = ((parts[0] * 24 + parts[1]) * 60 + parts[2]) * 60 + parts[3];
	else if (count == 3)
		total = (parts[0] * 60 + parts[1]) * 60 + parts[2];
	else
		total = parts[0] * 60 + parts[1];
	return total;
}

static void set_distribution(const char *value)
{
	char *copy = strdup(value), *comma = strchr(copy, ','), *colon;

	if (comma != NULL) {
		*comma++ = '\0';
		if (strcasecmp(comma, "pack") == 0)
			asked.pack = 1;
		else if (strcasecmp(comma, "nopack") != 0)
			refuse("--distribution=%s: Pack and NoPack may stand after the comma", value);
	}
	/* How tasks are bound to sockets and cores is not decided here. */
	if ((colon = strchr(copy, ':')) != NULL)
		*colon = '\0';
	if (strncmp(copy, "plane=", 6) == 0)
		asked.plane = whole("distribution=plane", copy + 6, 1);
	else if (strcmp(copy, "cyclic") == 0)
		asked.cyclic = 1;
	else if (strcmp(copy, "plane") == 0 && getenv("SLURM_DIST_PLANESIZE") != NULL)
		asked.plane = whole("distribution=plane", getenv("SLURM_DIST_PLANESIZE"), 1);
	else if (strcmp(copy, "block") == 0)
		asked.cyclic = 0;
	else if (strcmp(copy, "*") != 0)
		refuse("--distribution=%s: block, cyclic and plane=SIZE can be had here", value);
	free(copy);
}

static void set_mpi(const char *value)
{
	if (strcmp(value, "list") == 0) {
		puts("MPI plugin types are...\n\tnone");
		exit(0);
	}
	if (strcmp(value, "none") != 0)
		refuse("--mpi=%s: there is no PMI here; mpirun starts the processes of MPI in all kernels, by ssh", value);
	/* Steps look at it. */
	setenv("SLURM_MPI_TYPE", "none", 1);
}

static void set_nodes(const char *value)
{
	char *copy = strdup(value), *dash = strchr(copy, '-');

	if (dash != NULL)
		*dash++ = '\0';
	asked.least_nodes = whole("nodes", copy, 1);
	asked.nodes = dash == NULL ? asked.least_nodes : whole("nodes", dash, asked.least_nodes);
	free(copy);
}

static int number_in(const char *value)
{
	const char *colon = strrchr(value, ':');

	return whole("gpus-per-task", colon == NULL ? value : colon + 1, 1);
}

static void usage(void)
{
	puts("Usage: srun [OPTIONS...] COMMAND [ARGUMENTS...]\n\n"
	     "Runs COMMAND once for each task, in the kernels of this session.\n\n"
	     "  -n, --ntasks=N            so many tasks\n"
	     "  -N, --nodes=MIN[-MAX]     in so many kernels\n"
	     "      --ntasks-per-node=N   at most so many tasks in each\n"
	     "  -c, --cpus-per-task=N     processors that a task has for itself\n"
	     "  -m, --distribution=WAY    block, cyclic or plane=SIZE; ,Pack fills one kernel before the next\n"
	     "  -w, --nodelist=HOSTS      in these kernels; -x, --exclude: not in these\n"
	     "  -r, --relative=N          from the kernel with this number on\n"
	     "  -O, --overcommit          more tasks than processors\n"
	     "      --overlap             beside other steps; else it waits until there are processors\n"
	     "  -l, --label               the number of the task before each line\n"
	     "  -u, --unbuffered          output at once, not by lines\n"
	     "  -o, --output=FILE         FILE with %t (task), %n, %N (kernel), %j, %s, %x, %u, %a, %A; -e, -i likewise;\n"
	     "                            or none, or the number of one task\n"
	     "      --open-mode=MODE      append or truncate\n"
	     "  -D, --chdir=DIRECTORY     where tasks begin\n"
	     "      --export=NAMES        ALL, NONE, NAME or NAME=VALUE, with commas\n"
	     "  -K, --kill-on-bad-exit    when a task fails, end the others; -W, --wait=SECONDS: when one has ended\n"
	     "  -t, --time=TIME           end the tasks after it\n"
	     "      --multi-prog          COMMAND is a file with lines TASKS PROGRAM ARGUMENTS\n"
	     "      --gpus-per-task=N     each task sees N of the kernel's GPUs\n"
	     "      --pty                 one task in this kernel, on this terminal");
	exit(0);
}

static void take(const struct row *row, const char *value)
{
	switch (row->meaning) {
	case NTASKS:
		asked.tasks = whole(row->name, value, 1);
		break;
	case NODES:
		set_nodes(value);
		break;
	case PER_NODE:
		asked.per_node = whole(row->name, value, 1);
		break;
	case CPUS:
		asked.cpus = whole(row->name, value, 1);
		break;
	case LABEL:
		asked.label = value == NULL || strcmp(value, "0") != 0;
		break;
	case UNBUFFERED:
		asked.raw = value == NULL || strcmp(value, "0") != 0;
		break;
	case NODELIST:
		asked.nodelist = value;
		break;
	case EXCLUDE:
		asked.exclude = value;
		break;
	case CHDIR:
		asked.directory = value;
		break;
	case EXPORT:
		asked.exported = value;
		break;
	case OUTPUT:
		asked.out = value;
		break;
	case ERROR_FILE:
		asked.err = value;
		break;
	case INPUT:
		asked.in = value;
		break;
	case OPEN_MODE:
		if (strcmp(value, "append") != 0 && strcmp(value, "truncate") != 0 && strcmp(value, "a") != 0 && strcmp(value, "t") != 0)
			refuse("--open-mode=%s: append or truncate", value);
		asked.append_files = *value == 'a';
		break;
	case WAIT:
		asked.wait = whole(row->name, value, 0);
		break;
	case KILL_ON_BAD_EXIT:
		asked.kill_on_bad_exit = value == NULL || whole(row->name, value, 0) != 0;
		break;
	case DISTRIBUTION:
		set_distribution(value);
		break;
	case RELATIVE:
		asked.relative = whole(row->name, value, 0);
		break;
	case OVERCOMMIT:
		asked.overcommit = 1;
		break;
	case JOB_NAME:
		asked.job_name = value;
		break;
	case TIME_LIMIT:
		asked.limit = seconds_of(value);
		break;
	case QUIET:
		asked.quiet = 1;
		break;
	case VERBOSE:
		asked.verbose++;
		break;
	case MULTI_PROG:
		asked.multi = 1;
		break;
	case PTY:
		asked.pty = 1;
		break;
	case JOB_ID:
		asked.job = value;
		break;
	case OVERLAP:
		asked.overlap = 1;
		break;
	case GPUS_PER_TASK:
		asked.gpus = number_in(value);
		break;
	case MPI:
		set_mpi(value);
		break;
	case HELP:
		usage();
		break;
	case VERSION:
		puts("srun of Retinue");
		exit(0);
	case NO_MEANING:
		if (asked.verbose)
			note("--%s changes nothing here", row->name);
		break;
	case REFUSED:
		refuse("--%s: %s", row->name, row->refusal);
	}
}

/* Reads all options; returns the place of the command. */
static int read_options(int argc, char **argv)
{
	static struct option options[ROWS + 1];
	char letters[4 * ROWS] = "+", *end = letters + 1;
	size_t at;
	int found;

	for (at = 0; at < ROWS; at++) {
		options[at] = (struct option){rows[at].name, rows[at].argument, NULL, (int)(1000 + at)};
		if (rows[at].letter != '\0') {
			*end++ = rows[at].letter;
			if (rows[at].argument > 0)
				*end++ = ':';
			if (rows[at].argument == 2)
				*end++ = ':';
		}
		/* Before what is typed, which counts. */
		if (rows[at].variable != NULL && *variable(rows[at].variable, "") != '\0' && rows[at].meaning != PER_NODE)
			take(&rows[at], getenv(rows[at].variable));
	}
	if (getenv("SLURM_NTASKS") == NULL && getenv("SLURM_NPROCS") != NULL)
		asked.tasks = whole("ntasks", getenv("SLURM_NPROCS"), 1);
	*end = '\0';
	while ((found = getopt_long(argc, argv, letters, options, NULL)) != -1) {
		if (found == '?') {
			fputs("Try \"srun --help\" for more information\n", stderr);
			exit(1);
		}
		for (at = 0; at < ROWS; at++)
			if (found == (int)(1000 + at) || (found < 256 && rows[at].letter == (char)found)) {
				asked.tasks_given |= rows[at].meaning == NTASKS;
				take(&rows[at], optarg);
			}
	}
	for (found = optind; found < argc; found++)
		if (strcmp(argv[found], ":") == 0)
			refuse("`:` is for jobs of several parts (heterogeneous jobs): a session is one allocation");
	return optind;
}

/* ---- the kernels, and how many tasks each has ---- */

static int processors_here(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
}

/* Reads counts such as `4(x2),8`, a number for each node. */
static int count_of(const char *text, int node, int otherwise)
{
	int first = 0;

	while (*text != '\0') {
		char *end;
		long value = strtol(text, &end, 10), times = 1;

		if (end == text)
			return otherwise;
		if (strncmp(end, "(x", 2) == 0)
			times = strtol(end + 2, &end, 10), end += *end == ')';
		if (node < first + times)
			return value > 0 ? (int)value : otherwise;
		first += (int)times;
		text = *end == ',' ? end + 1 : end;
	}
	return otherwise;
}

static int is_among(const char *list, const char *name, const char *option)
{
	struct hosts found;
	int at, among;

	if (read_hosts(list, &found) != 0)
		refuse("--%s=%s: write hostnames, as main1,sub[1-3]", option, list);
	for (at = 0; at < found.count; at++)
		if (find_host(&hosts, found.names[at]) < 0)
			refuse("--%s=%s: %s is not a kernel of this session", option, list, found.names[at]);
	among = find_host(&found, name) >= 0;
	for (at = 0; at < found.count; at++)
		free(found.names[at]);
	free(found.names);
	return among;
}

/* The most tasks that fit a kernel, with `used` processors of it in use. */
static int room(int place, int used)
{
	int cpus = count_of(variable("SLURM_JOB_CPUS_PER_NODE", ""), place, processors_here()) - used;
	int fits = asked.overcommit ? INT_MAX / 2 / (hosts.count + 1) : cpus < 0 ? 0 : cpus / asked.cpus;

	return asked.per_node > 0 && fits > asked.per_node ? asked.per_node : fits;
}

/* Chooses kernels, and how many tasks each gets; returns 0, or -1 when there is no space for them. */
static int lay_out(const struct ledger *ledger)
{
	int wanted = asked.nodes > 0 ? asked.nodes : asked.tasks < job_nodes ? asked.tasks : job_nodes;
	int at, left = asked.tasks, round, most = 0, *spaces = calloc((size_t)hosts.count + 1, sizeof *spaces), pass;

	node_count = 0;
	/* Those that are named come in whatever others there are. */
	for (pass = 0; pass < 2; pass++)
		for (at = 0; at < hosts.count && node_count < wanted; at++) {
			int place = (at + asked.relative) % hosts.count, space;
			int named = asked.nodelist != NULL && is_among(asked.nodelist, hosts.names[place], "nodelist");

			if (named == pass || (asked.exclude != NULL && is_among(asked.exclude, hosts.names[place], "exclude")))
				continue;
			space = room(place, ledger == NULL ? 0 : used_processors(ledger, place));
			if (space == 0)
				continue;
			nodes[node_count] = (struct node){.name = hosts.names[place], .place = place, .in = -1, .out = -1};
			nodes[node_count].cpus = count_of(variable("SLURM_JOB_CPUS_PER_NODE", ""), place, processors_here());
			spaces[node_count++] = space;
			if (space > most)
				most = space;
		}
	if (asked.least_nodes > node_count || node_count == 0) {
		free(spaces);
		return -1;
	}
	if (asked.pack)
		for (at = 0; at < node_count && left > 0; at++) {
			nodes[at].tasks = spaces[at] < left ? spaces[at] : left;
			left -= nodes[at].tasks;
		}
	/* As many for each as there is space for, in turns; in which order they have their numbers is decided after. */
	for (round = 0; left > 0 && round < most; round++)
		for (at = 0; at < node_count && left > 0; at++)
			if (nodes[at].tasks < spaces[at]) {
				nodes[at].tasks++;
				left--;
			}
	free(spaces);
	return left == 0 ? 0 : -1;
}

static void number_tasks(void)
{
	int at, next = 0, size = asked.plane > 0 ? asked.plane : asked.cyclic ? 1 : INT_MAX, kept = 0;
	int *given;

	for (at = 0; at < node_count; at++)
		if (nodes[at].tasks > 0)
			nodes[kept++] = nodes[at];
	node_count = kept;
	given = calloc((size_t)node_count + 1, sizeof *given);
	for (at = 0; at < node_count; at++)
		nodes[at].ids = calloc((size_t)nodes[at].tasks, sizeof *nodes[at].ids);
	tasks = calloc((size_t)asked.tasks, sizeof *tasks);
	while (next < asked.tasks)
		for (at = 0; at < node_count; at++) {
			int one;

			for (one = 0; one < size && given[at] < nodes[at].tasks; one++) {
				tasks[next].node = at;
				nodes[at].ids[given[at]++] = next++;
			}
		}
	free(given);
}

/* Decides where tasks run, and takes processors for them: waits until there are some, unless there never will be. */
static void allocate(void)
{
	struct ledger *ledger = malloc(sizeof *ledger);
	/* A step within a step would wait for itself. */
	int counts = !asked.overlap && !asked.overcommit && getenv("SLURM_STEP_ID") == NULL, told = 0, at;

	for (;;) {
		int fd = open_ledger(ledger, job_id), fits = lay_out(counts && fd >= 0 ? ledger : NULL) == 0;

		if (fits) {
			step_id = ledger->next_step++;
			for (at = 0; at < node_count && counts; at++)
				if (nodes[at].tasks > 0)
					use_processors(ledger, nodes[at].place, nodes[at].tasks * asked.cpus);
			close_ledger(fd, ledger, 1);
			break;
		}
		close_ledger(fd, ledger, 0);
		if (!counts || fd < 0 || lay_out(NULL) != 0) {
			if (asked.least_nodes > job_nodes)
				refuse("Unable to create step for job %s: More nodes requested than the %d of this job", job_id, job_nodes);
			refuse("Unable to create step for job %s: More processors requested than permitted: %d tasks of %d, and %s%s "
			       "has %d (--overcommit runs them nevertheless)",
			       job_id, asked.tasks, asked.cpus, hosts.names[0], hosts.count > 1 ? " and each other kernel" : "",
			       count_of(variable("SLURM_JOB_CPUS_PER_NODE", ""), 0, processors_here()));
		}
		if (!told)
			note("Job %s step creation temporarily disabled, retrying (Requested nodes are busy)", job_id);
		told = 1;
		nanosleep(&(struct timespec){0, RETRY_NS}, NULL);
	}
	if (told)
		note("Step created for StepId=%s.%u", job_id, step_id);
	free(ledger);
	number_tasks();
}

static void find_job(void)
{
	const char *list = variable("SLURM_JOB_NODELIST", variable("BACKENDAI_CLUSTER_HOSTS", variable("SLURMD_NODENAME", "main1")));
	const char *id = variable("SLURM_JOB_ID", variable("BACKENDAI_SESSION_NUMBER", variable("BACKENDAI_SESSION_ID", "0")));
	int named = 0, at;

	snprintf(job_id, sizeof job_id, "%.100s", id);
	for (at = 0; job_id[at] != '\0'; at++)
		if (job_id[at] == '/')
			job_id[at] = '_';
	if (asked.job != NULL && strcmp(asked.job, id) != 0)
		refuse("--jobid=%s: a step runs in the kernels of its own session, %s", asked.job, id);
	if (read_hosts(list, &hosts) != 0 || hosts.count == 0)
		refuse("the list of hosts %s cannot be read", list);
	job_nodes = hosts.count;
	nodes = calloc((size_t)hosts.count, sizeof *nodes);
	if (asked.nodelist != NULL)
		for (at = 0; at < hosts.count; at++)
			named += is_among(asked.nodelist, hosts.names[at], "nodelist");
	if (asked.exclude != NULL)
		for (at = 0; at < hosts.count; at++)
			job_nodes -= is_among(asked.exclude, hosts.names[at], "exclude");
	if (named > 0 && asked.nodes == 0)
		asked.nodes = asked.least_nodes = named;
	if (asked.nodes > job_nodes && asked.least_nodes <= job_nodes)
		asked.nodes = job_nodes;
	if (asked.relative >= hosts.count)
		refuse("--relative=%d: the kernels of this job are 0 to %d", asked.relative, hosts.count - 1);
	/* What the job says of all its kernels is no number of tasks for some of them. */
	if (!asked.tasks_given && (asked.nodes > 0 || asked.per_node > 0 || asked.tasks == 0)) {
		int each = asked.per_node;

		if (each == 0)
			each = asked.tasks > 0 && asked.nodes > 0 && asked.nodes < job_nodes ? (asked.tasks + job_nodes - 1) / job_nodes
			       : asked.nodes > 0 && asked.tasks > 0 ? 0 : atoi(variable("SLURM_NTASKS_PER_NODE", "1"));
		if (each > 0)
			asked.tasks = (asked.nodes > 0 ? asked.nodes : job_nodes) * each;
	}
	if (asked.nodes > asked.tasks) {
		note("Warning: can't run %d processes on %d nodes, setting nnodes to %d", asked.tasks, asked.nodes, asked.tasks);
		asked.nodes = asked.least_nodes = asked.tasks;
	}
}

/* ---- programs ---- */

/* Splits a line into words, with quotes as a shell has them. */
static struct program words_of(char *line)
{
	struct program made = {calloc(strlen(line) / 2 + 2, sizeof(char *)), 0};
	char *from = line, *to = line, quote = '\0';

	for (;;) {
		while (isspace((unsigned char)*from))
			from++;
		if (*from == '\0' || *from == '#')
			return made;
		made.words[made.count++] = to;
		for (; *from != '\0' && (quote != '\0' || !isspace((unsigned char)*from)); from++) {
			if (quote == '\0' && (*from == '"' || *from == '\''))
				quote = *from;
			else if (*from == quote)
				quote = '\0';
			else if (*from == '\\' && from[1] != '\0' && quote != '\'')
				*to++ = *++from;
			else
				*to++ = *from;
		}
		if (*from != '\0')
			from++;
		*to++ = '\0';
	}
}

/* Puts a text in place of what stands for it. */
static char *replaced(const char *text, const char *what, const char *by)
{
	char *made = malloc(strlen(text) * (strlen(by) + 1) + 1), *to = made;

	while (*text != '\0')
		if (strncmp(text, what, strlen(what)) == 0) {
			to = stpcpy(to, by);
			text += strlen(what);
		} else {
			*to++ = *text++;
		}
	*to = '\0';
	return made;
}

/* Reads which tasks run what: lines of numbers of tasks, a program, and arguments, in which %t is the number of the
 * task and %o its place in the line. */
static void read_programs(const char *path)
{
	FILE *file = fopen(path, "re");
	char *line = NULL, number[32];
	size_t space = 0;
	int at, row = 0;

	if (file == NULL)
		refuse("--multi-prog: %s: %s", path, strerror(errno));
	for (at = 0; at < asked.tasks; at++)
		tasks[at].program = -1;
	programs = calloc((size_t)asked.tasks, sizeof *programs);
	while (getline(&line, &space, file) >= 0) {
		struct program words = words_of(strdup(line));
		char *range, *rest;
		int offset = 0;

		row++;
		if (words.count == 0)
			continue;
		if (words.count == 1)
			refuse("--multi-prog: %s:%d: a line has tasks and a program", path, row);
		rest = words.words[0];
		while ((range = strsep(&rest, ",")) != NULL) {
			char *end = range;
			long first = *range == '*' ? 0 : strtol(range, &end, 10), last = first, one, word;

			if (*range == '*')
				last = asked.tasks - 1, end = range + 1;
			else if (end == range)
				refuse("--multi-prog: %s:%d: %s is no number of a task", path, row, range);
			if (*end == '-')
				last = strtol(end + 1, &end, 10);
			if (*end != '\0' || first < 0 || last >= asked.tasks)
				refuse("--multi-prog: %s:%d: tasks are 0 to %d", path, row, asked.tasks - 1);
			for (one = first; one <= last; one++, offset++) {
				struct program *made = &programs[program_count];

				if (*range == '*' && tasks[one].program >= 0)
					continue;
				made->words = calloc((size_t)words.count, sizeof(char *));
				for (word = 1; word < words.count; word++) {
					snprintf(number, sizeof number, "%ld", one);
					made->words[made->count] = replaced(words.words[word], "%t", number);
					snprintf(number, sizeof number, "%d", offset);
					made->words[made->count] = replaced(made->words[made->count], "%o", number);
					made->count++;
				}
				if (tasks[one].program >= 0)
					refuse("--multi-prog: %s:%d: task %ld has a program already", path, row, one);
				tasks[one].program = program_count++;
			}
		}
	}
	fclose(file);
	for (at = 0; at < asked.tasks; at++)
		if (tasks[at].program < 0)
			refuse("--multi-prog: %s: task %d has no program", path, at);
}

/* ---- files ---- */

/* Returns the name of this user in the file of users: a static program asks nobody else. */
static const char *user_name(void)
{
	FILE *file = fopen("/etc/passwd", "re");
	struct passwd *found = NULL;

	while (file != NULL && (found = fgetpwent(file)) != NULL && found->pw_uid != getuid())
		;
	if (file != NULL)
		fclose(file);
	return found != NULL ? found->pw_name : variable("USER", "work");
}

/* Returns the name of a file for what a pattern says; of a task or not. As srun(1) and sbatch(1) have it. */
static char *file_name(const char *pattern, int task)
{
	char *made = NULL;
	size_t length = 0;
	FILE *to = open_memstream(&made, &length);
	const char *at;

	if (strchr(pattern, '\\') != NULL) {
		/* It says that nothing is replaced. */
		for (at = pattern; *at != '\0'; at++)
			if (*at != '\\')
				fputc(*at, to);
		fclose(to);
		return made;
	}
	for (at = pattern; *at != '\0'; at++) {
		char *end = (char *)at + 1, text[256] = "";
		int width = *at == '%' ? (int)strtol(at + 1, &end, 10) : 0;
		const char *node = task >= 0 ? nodes[tasks[task].node].name : variable("BACKENDAI_CLUSTER_HOST", "main1");
		const char *array = getenv("SLURM_ARRAY_TASK_ID");

		if (*at != '%' || *end == '\0') {
			fputc(*at, to);
			continue;
		}
		switch (*end) {
		case '%':
			strcpy(text, "%");
			break;
		case 'A':
			snprintf(text, sizeof text, "%.100s", variable("SLURM_ARRAY_JOB_ID", job_id));
			break;
		case 'a':
			snprintf(text, sizeof text, "%.100s", array != NULL ? array : "4294967294");
			break;
		case 'J':
			if (task >= 0)
				snprintf(text, sizeof text, "%.100s.%u", job_id, step_id);
			else
				snprintf(text, sizeof text, "%.100s", job_id);
			break;
		case 'j':
			snprintf(text, sizeof text, "%.100s", job_id);
			break;
		case 'N':
			snprintf(text, sizeof text, "%.100s", node);
			break;
		case 'n':
			snprintf(text, sizeof text, "%d", task >= 0 ? tasks[task].node : 0);
			break;
		case 's':
			if (task >= 0)
				snprintf(text, sizeof text, "%u", step_id);
			else
				strcpy(text, "batch");
			break;
		case 't':
			snprintf(text, sizeof text, "%d", task >= 0 ? task : 0);
			break;
		case 'u':
			snprintf(text, sizeof text, "%.100s", variable("SLURM_JOB_USER", user_name()));
			break;
		case 'x':
			snprintf(text, sizeof text, "%.100s", asked.job_name != NULL ? asked.job_name : variable("SLURM_JOB_NAME", "job"));
			break;
		default:
			fwrite(at, 1, (size_t)(end + 1 - at), to);
			at = end;
			continue;
		}
		if (width > 10)
			width = 10;
		if (isdigit((unsigned char)*text) && *end != 'x')
			fprintf(to, "%0*ld%s", width, atol(text), *end == 'J' && strchr(text, '.') != NULL ? strchr(text, '.') : "");
		else
			fputs(text, to);
		at = end;
	}
	fclose(to);
	return made;
}

/* Opens a file for output; the same one for all that have its name. */
static int open_output(const char *name)
{
	static struct {
		char *name;
		int fd;
	} *opened;
	static int count;
	int at, fd;

	for (at = 0; at < count; at++)
		if (strcmp(opened[at].name, name) == 0)
			return opened[at].fd;
	fd = open(name, O_WRONLY | O_CREAT | O_CLOEXEC | (asked.append_files ? O_APPEND : O_TRUNC), 0666);
	if (fd < 0)
		refuse("Could not open output file %s: %s", name, strerror(errno));
	opened = realloc(opened, (size_t)(count + 1) * sizeof *opened);
	opened[count].name = strdup(name);
	opened[count++].fd = fd;
	return fd;
}

static int is_number(const char *text)
{
	return *text != '\0' && text[strspn(text, "0123456789")] == '\0';
}

/* Decides where what tasks write goes: -1 for nowhere. */
static void open_outputs(void)
{
	const char *modes[2] = {asked.out, asked.err};
	int at, which;

	for (which = 0; which < 2; which++)
		for (at = 0; at < asked.tasks; at++) {
			const char *mode = modes[which];

			/* Errors go where output goes, unless that is a stream of this process. */
			if (mode == NULL && which == 1 && asked.out != NULL && !is_number(asked.out) && strcmp(asked.out, "none") != 0)
				mode = asked.out;
			if (mode == NULL || strcmp(mode, "all") == 0)
				tasks[at].file[which] = which + 1;
			else if (strcmp(mode, "none") == 0)
				tasks[at].file[which] = -1;
			else if (is_number(mode))
				tasks[at].file[which] = atoi(mode) == at ? which + 1 : -1;
			else
				tasks[at].file[which] = open_output(file_name(mode, at));
		}
}

/* Returns which task has input: all, none, or one by its number; `*fd` is where it comes from. */
static int open_input(int *fd)
{
	const char *mode = asked.in;
	int flags = fcntl(0, F_GETFL);

	*fd = 0;
	if (flags < 0)
		return NO_TASK;
	if (mode == NULL || strcmp(mode, "all") == 0)
		return ALL_TASKS;
	if (strcmp(mode, "none") == 0)
		return NO_TASK;
	if (is_number(mode)) {
		if (atoi(mode) >= asked.tasks)
			refuse("--input=%s: tasks are 0 to %d", mode, asked.tasks - 1);
		return atoi(mode);
	}
	if (strstr(mode, "%t") != NULL || strstr(mode, "%n") != NULL || strstr(mode, "%N") != NULL)
		refuse("--input=%s: one file is read for all tasks: have each open its own", mode);
	*fd = open(file_name(mode, 0), O_RDONLY | O_CLOEXEC);
	if (*fd < 0)
		refuse("Could not open input file %s: %s", mode, strerror(errno));
	return ALL_TASKS;
}

/* ---- variables ---- */

static char *counts_text(void)
{
	char *made = NULL;
	size_t length = 0;
	FILE *to = open_memstream(&made, &length);
	int at, run;

	for (at = 0; at < node_count; at += run) {
		for (run = 1; at + run < node_count && nodes[at + run].tasks == nodes[at].tasks; run++)
			;
		fprintf(to, run > 1 ? "%s%d(x%d)" : "%s%d", at == 0 ? "" : ",", nodes[at].tasks, run);
	}
	fclose(to);
	return made;
}

static void append_count(struct buffer *buffer, long value)
{
	char text[32];

	snprintf(text, sizeof text, "%ld", value);
	append_string(buffer, text);
}

static int put(struct buffer *to, const char *name, const char *format, ...)
{
	char text[4096];
	va_list values;
	int length = snprintf(text, sizeof text, "%s=", name);

	va_start(values, format);
	vsnprintf(text + length, sizeof text - (size_t)length, format, values);
	va_end(values);
	append_string(to, text);
	return 1;
}

/* A variable that the job has set, or else the text. */
static int put_unless(struct buffer *to, const char *name, const char *format, ...)
{
	char text[2048];
	va_list values;

	if (*variable(name, "") != '\0')
		return 0;
	va_start(values, format);
	vsnprintf(text, sizeof text, format, values);
	va_end(values);
	return put(to, name, "%s", text);
}

/* The variables of a step in one of its kernels; returns how many there are. */
static int put_variables(struct buffer *to, int at)
{
	char *names = NULL, *all, *ids = NULL, *counts = counts_text();
	size_t length = 0;
	FILE *list = open_memstream(&names, &length);
	int one, count = 0;

	for (one = 0; one < node_count; one++)
		fprintf(list, "%s%s", one == 0 ? "" : ",", nodes[one].name);
	fclose(list);
	list = open_memstream(&ids, &length);
	for (one = 0; one < nodes[at].tasks; one++)
		fprintf(list, "%s%d", one == 0 ? "" : ",", nodes[at].ids[one]);
	fclose(list);
	list = open_memstream(&all, &length);
	for (one = 0; one < hosts.count; one++)
		fprintf(list, "%s%s", one == 0 ? "" : ",", hosts.names[one]);
	fclose(list);
	count += put(to, "SLURM_JOB_ID", "%s", job_id);
	count += put(to, "SLURM_JOBID", "%s", job_id);
	count += put(to, "SLURM_STEP_ID", "%u", step_id);
	count += put(to, "SLURM_STEPID", "%u", step_id);
	count += put(to, "SLURM_NTASKS", "%d", asked.tasks);
	count += put(to, "SLURM_NPROCS", "%d", asked.tasks);
	count += put(to, "SLURM_STEP_NUM_TASKS", "%d", asked.tasks);
	count += put(to, "SLURM_NNODES", "%d", node_count);
	count += put(to, "SLURM_STEP_NUM_NODES", "%d", node_count);
	count += put(to, "SLURM_STEP_NODELIST", "%s", names);
	count += put(to, "SLURM_NODELIST", "%s", all);
	count += put(to, "SLURM_STEP_TASKS_PER_NODE", "%s", counts);
	count += put(to, "SLURM_TASKS_PER_NODE", "%s", counts);
	count += put(to, "SLURM_GTIDS", "%s", ids);
	count += put(to, "SLURM_NODEID", "%d", at);
	count += put(to, "SLURMD_NODENAME", "%s", nodes[at].name);
	count += put(to, "SLURM_TOPOLOGY_ADDR", "%s", nodes[at].name);
	count += put(to, "SLURM_TOPOLOGY_ADDR_PATTERN", "node");
	count += put(to, "SLURM_CPUS_ON_NODE", "%d", nodes[at].cpus);
	count += put(to, "SLURM_DISTRIBUTION", asked.plane > 0 ? "plane" : asked.cyclic ? "cyclic" : "block");
	count += put(to, "SLURM_SRUN_COMM_HOST", "%s", variable("BACKENDAI_CLUSTER_HOST", hosts.names[0]));
	count += put(to, "SLURM_LAUNCH_NODE_IPADDR", "%s", variable("BACKENDAI_CLUSTER_HOST", hosts.names[0]));
	if (asked.cpus > 1)
		count += put(to, "SLURM_CPUS_PER_TASK", "%d", asked.cpus);
	if (asked.plane > 0)
		count += put(to, "SLURM_DIST_PLANESIZE", "%d", asked.plane);
	if (getenv("SLURM_MPI_TYPE") != NULL)
		count += put(to, "SLURM_MPI_TYPE", "%s", getenv("SLURM_MPI_TYPE"));
	count += put_unless(to, "SLURM_JOB_NUM_NODES", "%d", hosts.count);
	count += put_unless(to, "SLURM_JOB_NODELIST", "%s", all);
	count += put_unless(to, "SLURM_JOB_NAME", "%s", asked.job_name != NULL ? asked.job_name : programs[0].words[0]);
	count += put_unless(to, "SLURM_JOB_UID", "%u", (unsigned)getuid());
	count += put_unless(to, "SLURM_JOB_GID", "%u", (unsigned)getgid());
	count += put_unless(to, "SLURM_JOB_USER", "%s", user_name());
	free(names);
	free(ids);
	free(all);
	free(counts);
	return count;
}

/* The variables of this process that a step gets as well; returns how many, and whether no others are kept. */
static int put_exported(struct buffer *to, int *login)
{
	const char *list = asked.exported != NULL ? asked.exported : "ALL";
	char *copy = strdup(list), *rest = copy, *one;
	int count = 0, all = 0, at;

	*login = 0;
	while ((one = strsep(&rest, ",")) != NULL) {
		if (*one == '\0' || strcasecmp(one, "NIL") == 0)
			continue;
		if (strcasecmp(one, "ALL") == 0) {
			all = 1;
		} else if (strcasecmp(one, "NONE") != 0) {
			char *equals = strchr(one, '=');

			if (equals == NULL && getenv(one) != NULL)
				count += put(to, one, "%s", getenv(one));
			else if (equals != NULL)
				append_string(to, one), count++;
		}
	}
	free(copy);
	*login = !all;
	if (all) {
		struct buffer listed = {0};

		for (at = 0; environ[at] != NULL; at++)
			if (!is_of_kernel(environ[at]) && strchr(environ[at], '=') != NULL)
				append_string(&listed, environ[at]), count++;
		/* What is given by its value counts. */
		append(&listed, to->data + to->begin, held(to));
		free(to->data);
		*to = listed;
	}
	return count;
}

/* ---- the run ---- */

static struct buffer start_frame(int at, int fed)
{
	struct buffer body = {0}, exported = {0}, own = {0}, frame = {0};
	char directory[PATH_MAX];
	mode_t mask = umask(0);
	int login, count, one, word;

	umask(mask);
	count = put_exported(&exported, &login);
	append_string(&body, asked.directory != NULL ? asked.directory : getcwd(directory, sizeof directory) != NULL ? directory : "/");
	append_count(&body, mask);
	append_count(&body, asked.raw);
	append_count(&body, login);
	append_count(&body, asked.gpus);
	append_count(&body, count);
	append(&body, exported.data, held(&exported));
	append_count(&body, put_variables(&own, at));
	append(&body, own.data, held(&own));
	append_count(&body, program_count);
	for (one = 0; one < program_count; one++) {
		append_count(&body, programs[one].count);
		for (word = 0; word < programs[one].count; word++)
			append_string(&body, programs[one].words[word]);
	}
	append_count(&body, nodes[at].tasks);
	for (one = 0; one < nodes[at].tasks; one++) {
		int id = nodes[at].ids[one];

		append_count(&body, id);
		append_count(&body, tasks[id].program);
		append_count(&body, fed == ALL_TASKS || fed == id);
	}
	append_frame(&frame, 'S', body.data, held(&body));
	free(body.data);
	free(exported.data);
	free(own.data);
	return frame;
}

static void connect_node(struct node *node, const char *self)
{
	int in[2], out[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) != 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, out) != 0)
		refuse("%s: %s", node->name, strerror(errno));
	node->pid = fork();
	if (node->pid < 0)
		refuse("%s: %s", node->name, strerror(errno));
	if (node->pid == 0) {
		/* A Ctrl-C at the terminal is for srun, which passes it on. */
		setpgid(0, 0);
		restore_signals();
		if (strcmp(node->name, self) == 0) {
			int fd;

			/* The end of srun shows only where nobody else has its side. */
			for (fd = 3; fd < 3 + 8 * (node_count + asked.tasks) + 64; fd++)
				if (fd != in[1] && fd != out[1])
					close(fd);
			_exit(run_step(in[1], out[1]));
		}
		dup2(in[1], 0);
		dup2(out[1], 1);
		unsetenv("DISPLAY");
		execl(SSH, "ssh", "-aTx", "-oBatchMode=yes", "-oServerAliveInterval=15", node->name, "/run/kernel/srun " STEP_OPTION,
		      (char *)NULL);
		execlp("ssh", "ssh", "-aTx", "-oBatchMode=yes", "-oServerAliveInterval=15", node->name,
		       "/run/kernel/srun " STEP_OPTION, (char *)NULL);
		fprintf(stderr, "srun: error: there is no ssh to reach %s by\n", node->name);
		_exit(255);
	}
	close(in[1]);
	close(out[1]);
	node->in = in[0];
	node->out = out[0];
	set_nonblocking(node->in);
	set_nonblocking(node->out);
}

static void send_signal(int number)
{
	unsigned char byte = (unsigned char)number;
	int at;

	for (at = 0; at < node_count; at++)
		if (nodes[at].in >= 0 && !nodes[at].ended)
			append_frame(&nodes[at].to, 'K', &byte, 1);
}

/* Writes all of it, as the descriptor may be one of others that does not block or does. */
static void write_all(int fd, const unsigned char *data, size_t length)
{
	while (length > 0) {
		ssize_t put_now = write(fd, data, length);

		if (put_now < 0 && errno == EAGAIN) {
			struct pollfd one = {fd, POLLOUT, 0};

			poll(&one, 1, -1);
		} else if (put_now < 0 && errno != EINTR) {
			return;
		} else if (put_now > 0) {
			data += put_now;
			length -= (size_t)put_now;
		}
	}
}

static void show_line(int id, int which, const unsigned char *data, size_t length, int ended)
{
	char label[32];
	struct buffer whole_line = {0};
	int digits = snprintf(label, sizeof label, "%d", asked.tasks - 1);

	if (tasks[id].file[which] < 0)
		return;
	if (asked.label) {
		snprintf(label, sizeof label, "%*d: ", digits, id);
		append(&whole_line, label, strlen(label));
	}
	append(&whole_line, data, length);
	if (asked.label && !ended)
		append(&whole_line, "\n", 1);
	write_all(tasks[id].file[which], whole_line.data, held(&whole_line));
	free(whole_line.data);
}

/* Shows what a task has written, by lines, so that those of several are not mixed; at its `end` also what is left. */
static void show(int id, int which, const unsigned char *data, size_t length, int end)
{
	struct buffer *line = &tasks[id].line[which];
	unsigned char *newline;

	append(line, data, length);
	if (asked.raw && !asked.label) {
		if (held(line) > 0)
			show_line(id, which, line->data + line->begin, held(line), 1);
		line->begin = line->end = 0;
		return;
	}
	while (held(line) > 0 && (newline = memrchr(line->data + line->begin, '\n', held(line))) != NULL) {
		unsigned char *begin = line->data + line->begin;

		if (asked.label)
			newline = memchr(begin, '\n', held(line));
		show_line(id, which, begin, (size_t)(newline + 1 - begin), 1);
		line->begin += (size_t)(newline + 1 - begin);
	}
	if (held(line) > 0 && (end || held(line) > LONGEST_LINE)) {
		show_line(id, which, line->data + line->begin, held(line), !end);
		line->begin = line->end = 0;
	}
}

static int code_of(int status)
{
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void note_end(int id, int status)
{
	const char *name = nodes[tasks[id].node].name;
	int code = code_of(status);

	if (tasks[id].ended)
		return;
	tasks[id].ended = 1;
	tasks[id].status = status;
	if (code > highest)
		highest = code;
	if (asked.quiet || code == 0)
		return;
	if (WIFSIGNALED(status))
		complain("%s: task %d: %s%s", name, id, strsignal(WTERMSIG(status)), WCOREDUMP(status) ? " (core dumped)" : "");
	else
		complain("%s: task %d: Exited with exit code %d", name, id, code);
}

static void lose(struct node *node)
{
	int at, open_tasks = 0;

	node->ended = node->lost = 1;
	for (at = 0; at < node->tasks; at++)
		open_tasks += !tasks[node->ids[at]].ended;
	if (open_tasks > 0)
		complain("%s: the connection to the kernel has ended", node->name);
	for (at = 0; at < node->tasks; at++)
		note_end(node->ids[at], 1 << 8);
}

static void take_frame(struct node *node, char letter, unsigned char *body, size_t length)
{
	uint32_t place = length >= 4 ? number_at(body) : 0;

	switch (letter) {
	case 'A':
		node->taken += place;
		return;
	case 'W':
		fprintf(stderr, "slurmstepd: error: %s: %.*s\n", node->name, (int)length, body);
		return;
	case 'Z':
		node->ended = 1;
		return;
	}
	if (length < 4 || place >= (uint32_t)node->tasks)
		return;
	if (letter == 'Q' && length >= 8)
		note_end(node->ids[place], (int)number_at(body + 4));
	else if (letter == 'O' || letter == 'X')
		show(node->ids[place], letter == 'X', body + 4, length - 4, 0);
}

static void on_signal(int number)
{
	unsigned char byte = (unsigned char)number;
	int error = errno;

	if (write(signal_pipe[1], &byte, 1) < 0)
		errno = error;
	errno = error;
}

static void catch_signals(void)
{
	static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGCONT, SIGWINCH, 0};
	int at;

	if (pipe2(signal_pipe, O_CLOEXEC | O_NONBLOCK) != 0)
		refuse("%s", strerror(errno));
	for (at = 0; numbers[at] != 0; at++) {
		struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, before;

		sigaction(numbers[at], NULL, &before);
		if (before.sa_handler != SIG_IGN)
			sigaction(numbers[at], &action, NULL);
	}
	signal(SIGPIPE, SIG_IGN);
	/* In the background, nothing is read from the terminal. */
	signal(SIGTTIN, SIG_IGN);
}

/* Ends all tasks: by SIGTERM, and by SIGKILL a moment later. */
static void end_tasks(long *deadline, const char *why)
{
	if (ending)
		return;
	ending = 1;
	if (!asked.quiet)
		fprintf(stderr, "srun: error: *** STEP %s.%u CANCELLED%s ***\n", job_id, step_id, why);
	send_signal(SIGCONT);
	send_signal(SIGTERM);
	*deadline = milliseconds() + KILL_GRACE_MS;
}

static void pass_signals(void)
{
	static int interrupts;
	unsigned char byte;

	while (read(signal_pipe[0], &byte, 1) == 1) {
		if (byte == SIGINT && ++interrupts > 2)
			exit(130);
		if (byte == SIGINT && !asked.quiet)
			note("sending Ctrl-C to StepId=%s.%u", job_id, step_id);
		if (byte != SIGWINCH)
			send_signal(byte);
	}
}

/* Runs the step; returns its exit code. */
static int run_tasks(const char *self)
{
	int input, fed = open_input(&input), at, input_open = fed != NO_TASK, open_nodes, ended, failed;
	long limit = asked.limit > 0 ? milliseconds() + asked.limit * 1000 : 0, wait_until = 0, kill_at = 0;
	unsigned char piece[16 * 1024];

	open_outputs();
	catch_signals();
	for (at = 0; at < node_count; at++) {
		connect_node(&nodes[at], self);
		nodes[at].to = start_frame(at, fed);
	}
	for (;;) {
		struct pollfd polled[2 + 2 * (size_t)node_count];
		long now = milliseconds(), next = 0, times[3];
		int window = 1;

		for (at = open_nodes = 0; at < node_count; at++) {
			open_nodes += !nodes[at].ended;
			if (!nodes[at].ended && (held(&nodes[at].to) > INPUT_WINDOW || nodes[at].sent - nodes[at].taken >= INPUT_WINDOW / 2))
				window = 0;
		}
		if (open_nodes == 0)
			break;
		for (at = ended = failed = 0; at < asked.tasks; at++) {
			ended += tasks[at].ended;
			failed += tasks[at].ended && tasks[at].status != 0;
		}
		if (failed > 0 && ended < asked.tasks && asked.kill_on_bad_exit)
			end_tasks(&kill_at, " DUE TO TASK FAILURE");
		for (at = 0; at < node_count; at++)
			if (nodes[at].lost && ended < asked.tasks)
				end_tasks(&kill_at, " DUE TO NODE FAILURE");
		if (ended > 0 && ended < asked.tasks && asked.wait > 0 && wait_until == 0)
			wait_until = now + asked.wait * 1000;
		if (limit != 0 && now >= limit && ended < asked.tasks)
			end_tasks(&kill_at, " DUE TO TIME LIMIT");
		if (wait_until != 0 && now >= wait_until && ended < asked.tasks)
			end_tasks(&kill_at, ": tasks did not end within --wait of the first");
		if (kill_at != 0 && now >= kill_at) {
			send_signal(SIGKILL);
			kill_at = now + KILL_GRACE_MS;
		}
		times[0] = ending ? 0 : limit;
		times[1] = ending ? 0 : wait_until;
		times[2] = kill_at;
		for (at = 0; at < 3; at++)
			if (times[at] != 0 && (next == 0 || times[at] < next))
				next = times[at];
		polled[0] = (struct pollfd){signal_pipe[0], POLLIN, 0};
		polled[1] = (struct pollfd){input_open && window ? input : -1, POLLIN, 0};
		for (at = 0; at < node_count; at++) {
			struct node *node = &nodes[at];

			polled[2 + 2 * at] = (struct pollfd){node->ended || held(&node->to) == 0 ? -1 : node->in, POLLOUT, 0};
			polled[3 + 2 * at] = (struct pollfd){node->ended ? -1 : node->out, POLLIN, 0};
		}
		if (poll(polled, (nfds_t)(2 + 2 * node_count), next == 0 ? -1 : next > now ? (int)(next - now) : 0) < 0) {
			if (errno != EINTR)
				refuse("%s", strerror(errno));
			continue;
		}
		if (polled[0].revents != 0)
			pass_signals();
		if (polled[1].revents != 0) {
			ssize_t got = read(input, piece, sizeof piece);

			if (got <= 0 && !(got < 0 && (errno == EINTR || errno == EAGAIN))) {
				input_open = 0;
				for (at = 0; at < node_count; at++)
					append_frame(&nodes[at].to, 'E', "", 0);
			}
			for (at = 0; at < node_count && got > 0; at++) {
				append_frame(&nodes[at].to, 'I', piece, (size_t)got);
				nodes[at].sent += (size_t)got;
			}
		}
		for (at = 0; at < node_count; at++) {
			struct node *node = &nodes[at];
			int wrong = 0;

			if (polled[2 + 2 * at].revents != 0 && drain(&node->to, node->in) != 0)
				node->to.begin = node->to.end = 0;
			if (polled[3 + 2 * at].revents != 0) {
				ssize_t got = fill(&node->from, node->out, 64 * 1024);
				unsigned char *body;
				size_t length;
				char letter;

				while ((body = next_frame(&node->from, &letter, &length, &wrong)) != NULL)
					take_frame(node, letter, body, length);
				if (!node->ended && (wrong || got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)))
					lose(node);
			}
		}
	}
	for (at = 0; at < asked.tasks; at++) {
		show(at, 0, (const unsigned char *)"", 0, 1);
		show(at, 1, (const unsigned char *)"", 0, 1);
	}
	for (at = 0; at < node_count; at++) {
		close(nodes[at].in);
		close(nodes[at].out);
		waitpid(nodes[at].pid, NULL, 0);
	}
	return highest;
}

/* Becomes the one task, which keeps the terminal and all else of this process. */
static void run_alone(void)
{
	struct buffer exported = {0}, own = {0};
	struct strings strings;
	int login, count = put_exported(&exported, &login), variables = put_variables(&own, 0);

	if (login)
		keep_login_variables();
	strings = (struct strings){(char *)exported.data, (char *)exported.data + exported.end};
	for (; count > 0; count--)
		set_variable(next_string(&strings));
	strings = (struct strings){(char *)own.data, (char *)own.data + own.end};
	for (; variables > 0; variables--)
		set_variable(next_string(&strings));
	if (asked.directory != NULL && chdir(asked.directory) != 0) {
		fprintf(stderr, "slurmstepd: error: couldn't chdir to `%s': %s: going to /tmp instead\n", asked.directory, strerror(errno));
		if (chdir("/tmp") != 0)
			refuse("/tmp: %s", strerror(errno));
	}
	/* Of a step of several tasks; this one is alone. */
	unsetenv("PMI_FD");
	set_to_number("SLURM_PROCID", 0);
	set_to_number("SLURM_LOCALID", 0);
	set_to_number("SLURM_TASK_PID", getpid());
	if (getenv("RANK") != NULL && getenv("BACKENDAI_CLUSTER_SIZE") != NULL) {
		setenv("RANK", "0", 1);
		setenv("WORLD_SIZE", "1", 1);
	}
	share_gpus(0, asked.gpus);
	become(programs[0].words);
}

static void show_time(const char *name)
{
	const char *value = getenv(name);
	time_t moment = value == NULL ? 0 : (time_t)atoll(value);
	char text[64];

	if (value == NULL || strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", localtime(&moment)) == 0)
		strcpy(text, "Unknown");
	fputs(text, stdout);
}

/* Shows what the job's variables say of it, as scripts print for their logs. */
static int show_job(const char *wanted)
{
	char directory[PATH_MAX];

	find_job();
	if (wanted != NULL && strcmp(wanted, job_id) != 0) {
		fputs("slurm_load_jobs error: Invalid job id specified\n", stderr);
		return 1;
	}
	printf("JobId=%s JobName=%s\n", job_id, variable("SLURM_JOB_NAME", "(null)"));
	printf("   UserId=%s(%u) GroupId=(%u)\n", variable("SLURM_JOB_USER", user_name()), (unsigned)getuid(), (unsigned)getgid());
	printf("   Account=%s Partition=%s\n", variable("SLURM_JOB_ACCOUNT", "default"), variable("SLURM_JOB_PARTITION", "default"));
	printf("   JobState=RUNNING Reason=None Restarts=%s\n", variable("SLURM_RESTART_COUNT", "0"));
	printf("   StartTime=");
	show_time("SLURM_JOB_START_TIME");
	printf(" EndTime=");
	show_time("SLURM_JOB_END_TIME");
	printf("\n   NodeList=");
	write_hosts(stdout, hosts.names, hosts.count);
	printf("\n   BatchHost=%s\n", hosts.names[0]);
	printf("   NumNodes=%d NumTasks=%s CPUs/Task=%s\n", hosts.count, variable("SLURM_NTASKS", "1"),
	       variable("SLURM_CPUS_PER_TASK", "1"));
	printf("   WorkDir=%s\n", getcwd(directory, sizeof directory) == NULL ? "(null)" : directory);
	return 0;
}

static int show_hosts(const char *what, const char *list)
{
	int at, compact = strncmp(what, "hostl", 5) == 0;

	if (list == NULL || read_hosts(list, &hosts) != 0) {
		fprintf(stderr, "scontrol: error: Invalid hostlist: %s\n", list == NULL ? "" : list);
		return 1;
	}
	if (compact) {
		write_hosts(stdout, hosts.names, hosts.count);
		putchar('\n');
	}
	for (at = 0; at < hosts.count && !compact; at++)
		puts(hosts.names[at]);
	return 0;
}

/* What of scontrol a kernel can have, which has no way to the manager. */
static int control(int argc, char **argv)
{
	const char *words[3] = {"", "", NULL};
	int at, count = 0;

	for (at = 1; at < argc && count < 3; at++)
		if (*argv[at] != '-')
			words[count++] = argv[at];
	if (strcmp(words[0], "show") == 0 && strncmp(words[1], "host", 4) == 0)
		return show_hosts(words[1], words[2] != NULL ? words[2] : variable("SLURM_JOB_NODELIST", getenv("BACKENDAI_CLUSTER_HOSTS")));
	if (strcmp(words[0], "show") == 0 && strncmp(words[1], "job", 3) == 0)
		return show_job(words[2]);
	fputs("scontrol: error: in a kernel, `scontrol show hostnames`, `show hostlist` and `show job` of its own job can be "
	      "had; for all else, call `retinue scontrol` where you have logged in\n",
	      stderr);
	return 1;
}

int main(int argc, char **argv)
{
	const char *called = strrchr(argv[0], '/') != NULL ? strrchr(argv[0], '/') + 1 : argv[0];
	const char *self = variable("BACKENDAI_CLUSTER_HOST", "main1");
	int first;

	if (strcmp(called, "scontrol") == 0)
		return control(argc, argv);
	if (argc == 2 && strcmp(argv[1], STEP_OPTION) == 0)
		return run_step(0, 1);
	if (argc == 3 && strcmp(argv[1], FILE_OPTION) == 0) {
		find_job();
		puts(file_name(argv[2], -1));
		return 0;
	}
	first = read_options(argc, argv);
	if (first >= argc) {
		complain("No command given to execute.");
		return 1;
	}
	if (asked.pty && !asked.tasks_given)
		asked.tasks = asked.tasks_given = asked.nodes = asked.least_nodes = 1;
	find_job();
	if (asked.nodelist == NULL && asked.relative == 0 && (asked.pty || asked.tasks == 1)) {
		/* One task is at home. */
		int own = find_host(&hosts, self);

		asked.relative = own < 0 ? 0 : own;
	}
	allocate();
	if (asked.multi) {
		read_programs(argv[first]);
	} else {
		programs = calloc(1, sizeof *programs);
		programs[program_count++] = (struct program){argv + first, argc - first};
	}
	if (asked.verbose)
		note("%d tasks in %d kernels: step %s.%u", asked.tasks, node_count, job_id, step_id);
	if (asked.tasks == 1 && strcmp(nodes[0].name, self) == 0 && asked.out == NULL && asked.err == NULL && asked.in == NULL &&
	    !asked.label && asked.limit == 0 && (!asked.raw || asked.pty))
		run_alone();
	if (asked.pty)
		refuse("--pty: it is for one task in this kernel, without files: for another kernel, ssh -t %s", nodes[0].name);
	return run_tasks(self);
}
