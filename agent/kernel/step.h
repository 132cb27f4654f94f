/*
 * The tasks of a step in one kernel, as srun has them run: in its own kernel by a child, in others by ssh.
 *
 * Standard input and output carry frames: a letter, four bytes of length, most significant first, and so many bytes.
 * Frames in:
 *   S  starts the tasks: strings that end in NUL (see `start_tasks`)
 *   I  input, for each task that has any
 *   E  end of input
 *   K  a signal for all tasks, one byte
 * Frames out, of which numbers have four bytes:
 *   O  standard output of a task: its place here, then bytes
 *   X  its standard error
 *   A  so many bytes of input were taken by all tasks
 *   Q  a task has ended: its place here, and its status as wait(2) has it
 *   W  a warning
 *   Z  all have ended, and nothing of them is left
 * At most INPUT_WINDOW bytes of input are not yet taken, so that a task that does not read delays no signal.
 *
 * What tasks leave behind is killed once all of them have ended. When standard input ends before, srun is gone: tasks
 * get SIGTERM, and all of it is killed a moment later.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define INPUT_WINDOW (64 * 1024)
#define OUTPUT_BOUND (256 * 1024)
#define LARGEST_FRAME (64u * 1024 * 1024)
#define FRAME_HEADER 5
#define END_GRACE_MS 2000
/* The number of the descriptor by which tasks ask for PMI is at least this. */
#define LEAST_OF_PMI 100
/* Descriptors that are polled before those of tasks. */
#define POLLED 4

extern char **environ;

struct buffer {
	unsigned char *data;
	size_t begin, end, space;
};

static size_t held(const struct buffer *buffer)
{
	return buffer->end - buffer->begin;
}

/* Makes space for so many bytes at the end. */
static unsigned char *reserve(struct buffer *buffer, size_t more)
{
	if (buffer->begin == buffer->end)
		buffer->begin = buffer->end = 0;
	if (buffer->begin > buffer->space / 2) {
		memmove(buffer->data, buffer->data + buffer->begin, held(buffer));
		buffer->end -= buffer->begin;
		buffer->begin = 0;
	}
	if (buffer->space - buffer->end < more) {
		buffer->space = (buffer->end + more) * 2;
		buffer->data = realloc(buffer->data, buffer->space);
		if (buffer->data == NULL) {
			fputs("srun: error: there is no memory\n", stderr);
			exit(1);
		}
	}
	return buffer->data + buffer->end;
}

static void append(struct buffer *buffer, const void *data, size_t length)
{
	memcpy(reserve(buffer, length), data, length);
	buffer->end += length;
}

static void append_number(struct buffer *buffer, uint32_t value)
{
	unsigned char bytes[4] = {(unsigned char)(value >> 24), (unsigned char)(value >> 16), (unsigned char)(value >> 8),
	                          (unsigned char)value};

	append(buffer, bytes, 4);
}

static void append_string(struct buffer *buffer, const char *text)
{
	append(buffer, text, strlen(text) + 1);
}

static uint32_t number_at(const unsigned char *bytes)
{
	return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static void append_frame(struct buffer *buffer, char letter, const void *data, size_t length)
{
	append(buffer, &letter, 1);
	append_number(buffer, (uint32_t)length);
	append(buffer, data, length);
}

/* A frame of a number, and of bytes after it. */
static void append_of_task(struct buffer *buffer, char letter, uint32_t place, const void *data, size_t length)
{
	append(buffer, &letter, 1);
	append_number(buffer, (uint32_t)length + 4);
	append_number(buffer, place);
	append(buffer, data, length);
}

/* Takes a frame out; NULL while it is not there, with `*wrong` set when it can be none. */
static unsigned char *next_frame(struct buffer *buffer, char *letter, size_t *length, int *wrong)
{
	unsigned char *at = buffer->data + buffer->begin;

	if (held(buffer) < FRAME_HEADER)
		return NULL;
	*length = number_at(at + 1);
	if (*length > LARGEST_FRAME) {
		*wrong = 1;
		return NULL;
	}
	if (held(buffer) < FRAME_HEADER + *length)
		return NULL;
	*letter = (char)*at;
	buffer->begin += FRAME_HEADER + *length;
	return at + FRAME_HEADER;
}

/* Reads what is there; returns as read(2), with -1 and EAGAIN for nothing yet. */
static ssize_t fill(struct buffer *buffer, int fd, size_t most)
{
	ssize_t got = read(fd, reserve(buffer, most), most);

	if (got > 0)
		buffer->end += (size_t)got;
	return got;
}

/* Writes what can be written; -1 when nobody reads any more. */
static int drain(struct buffer *buffer, int fd)
{
	ssize_t put = write(fd, buffer->data + buffer->begin, held(buffer));

	if (put < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -1;
	buffer->begin += (size_t)put;
	return 0;
}

static void set_nonblocking(int fd)
{
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

static long milliseconds(void)
{
	struct timespec moment;

	clock_gettime(CLOCK_MONOTONIC, &moment);
	return moment.tv_sec * 1000 + moment.tv_nsec / 1000000;
}

/* ---- the tasks ---- */

struct step_task {
	pid_t pid;
	int running, in, out, err;
	struct buffer input;
	uint64_t taken;
};

static struct step_task *step_tasks;
static int step_count;
static struct buffer step_in, step_out;
static uint64_t step_received, step_acknowledged;
static int step_input_ended;
/* Answers tasks that ask for PMI. */
static int step_pmi = -1;

/* Whether a variable is a kernel's own, and says nothing in another. */
static int is_of_kernel(const char *variable)
{
	static const char *const names[] = {
		"BACKENDAI_", "RETINUE_", "HOSTNAME=", "SSH_", "CUDA_VISIBLE_DEVICES=", "NVIDIA_VISIBLE_DEVICES=",
		"ROCR_VISIBLE_DEVICES=", "RANK=", "NODE_RANK=", "PET_NODE_RANK=", "SLURM_CPUS_ON_NODE=", "SLURMD_NODENAME=", NULL,
	};
	int at;

	for (at = 0; names[at] != NULL; at++)
		if (strncmp(variable, names[at], strlen(names[at])) == 0)
			return 1;
	return 0;
}

/* Whether a variable stays with `--export=NONE`. */
static int is_of_login(const char *variable)
{
	static const char *const names[] = {"SLURM", "PATH=", "HOME=", "USER=", "LOGNAME=", "SHELL=", "LANG=", "TMPDIR=",
	                                    "LD_LIBRARY_PATH=", "MASTER_ADDR=", "MASTER_PORT=", "WORLD_SIZE=", NULL};
	int at;

	if (is_of_kernel(variable))
		return 1;
	for (at = 0; names[at] != NULL; at++)
		if (strncmp(variable, names[at], strlen(names[at])) == 0)
			return 1;
	return 0;
}

static void keep_login_variables(void)
{
	char **at = environ, **kept = environ;

	for (; *at != NULL; at++)
		if (is_of_login(*at))
			*kept++ = *at;
	*kept = NULL;
}

static void set_variable(char *variable)
{
	char *equals = strchr(variable, '=');

	if (equals == NULL || equals == variable)
		return;
	*equals = '\0';
	setenv(variable, equals + 1, 1);
	*equals = '=';
}

static void set_to_number(const char *name, long value)
{
	char text[32];

	snprintf(text, sizeof text, "%ld", value);
	setenv(name, text, 1);
}

/* Gives a task its part of the kernel's GPUs, as its variable lists them. */
static void share_gpus(int local, int each)
{
	const char *listed = getenv("CUDA_VISIBLE_DEVICES");
	char *copy, *one, *rest, *own;
	int at = 0;

	if (each <= 0 || listed == NULL || *listed == '\0')
		return;
	copy = rest = strdup(listed);
	own = calloc(1, strlen(listed) + 2);
	while ((one = strsep(&rest, ",")) != NULL) {
		if (at / each == local)
			strcat(strcat(own, *own == '\0' ? "" : ","), one);
		at++;
	}
	/* Of fewer than there are tasks, all see all. */
	if (*own != '\0') {
		setenv("CUDA_VISIBLE_DEVICES", own, 1);
		setenv("SLURM_STEP_GPUS", own, 1);
	}
	free(copy);
	free(own);
}

static void restore_signals(void)
{
	sigset_t none;
	int number;

	for (number = 1; number < NSIG; number++)
		signal(number, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Becomes a command; says why it cannot, and ends as Slurm does: with the number of the error. */
static void become(char **argv)
{
	int error;

	execvp(*argv, argv);
	error = errno;
	fprintf(stderr, "slurmstepd: error: execve(): %s: %s\n", *argv, strerror(error));
	_exit(error);
}

/* Opens a terminal that changes nothing of what is written to it: programs write to one without delay. */
static int open_raw_terminal(int *side)
{
	struct termios settings;
	int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);

	if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0 ||
	    (*side = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC)) < 0) {
		if (master >= 0)
			close(master);
		return -1;
	}
	tcgetattr(*side, &settings);
	cfmakeraw(&settings);
	tcsetattr(*side, TCSANOW, &settings);
	return master;
}

struct strings {
	char *at, *end;
};

static char *next_string(struct strings *strings)
{
	static char nothing[1];
	char *text = strings->at, *end;

	if (text >= strings->end || (end = memchr(text, '\0', (size_t)(strings->end - text))) == NULL)
		return nothing;
	strings->at = end + 1;
	return text;
}

static long next_number(struct strings *strings)
{
	return strtol(next_string(strings), NULL, 10);
}

static void warn_step(const char *text)
{
	append_frame(&step_out, 'W', text, strlen(text));
}

/*
 * There is no PMI. A library of MPI that finds none takes its process for the only one, and each task would compute
 * alone, without a word. One that asks is told, and fails. Packets: each reader gets one answer.
 */
static void refuse_pmi(void)
{
	static const char answer[] = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1\n";
	static int said;
	char asked[4096];

	while (recv(step_pmi, asked, sizeof asked, MSG_DONTWAIT) > 0) {
		if (!said)
			warn_step("a task asks for PMI, and there is none here: mpirun starts the processes of MPI in all kernels, "
			          "by ssh; with --mpi=none each task is a process of MPI alone");
		said = 1;
		(void)!send(step_pmi, answer, sizeof answer - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
	}
}

/* Lets tasks ask for PMI, if there are several, and nothing says that they need none; returns their end. */
static int open_pmi(void)
{
	const char *tasks = getenv("SLURM_NTASKS");
	int pair[2], theirs;

	unsetenv("PMI_FD");
	if (tasks == NULL || atoi(tasks) < 2 || getenv("SLURM_MPI_TYPE") != NULL ||
	    socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
		return -1;
	step_pmi = pair[0];
	/* Scripts have numbers of their own, which are small. */
	theirs = fcntl(pair[1], F_DUPFD, LEAST_OF_PMI);
	close(pair[1]);
	set_to_number("PMI_FD", theirs);
	return theirs;
}

/* Starts the tasks as a frame says: directory, mask of files, whether output goes to a terminal, whether variables of
 * the caller are left out, GPUs of each task; variables of the caller, and of the step; programs with their arguments;
 * and for each task its number, that of its program, and whether it has input. Each list has its length first. */
static void start_tasks(char *body, size_t length)
{
	struct strings strings = {body, body + length};
	char *directory = next_string(&strings), text[512], ***programs;
	long mask = next_number(&strings), raw = next_number(&strings), login = next_number(&strings);
	long gpus = next_number(&strings), count, at, word;
	int pmi;

	if (login)
		keep_login_variables();
	for (count = next_number(&strings); count > 0; count--)
		set_variable(next_string(&strings));
	for (count = next_number(&strings); count > 0; count--)
		set_variable(next_string(&strings));
	count = next_number(&strings);
	programs = calloc((size_t)count + 1, sizeof *programs);
	for (at = 0; at < count; at++) {
		long words = next_number(&strings);

		programs[at] = calloc((size_t)words + 1, sizeof **programs);
		for (word = 0; word < words; word++)
			programs[at][word] = next_string(&strings);
	}
	umask((mode_t)mask);
	if (chdir(directory) != 0) {
		snprintf(text, sizeof text, "couldn't chdir to `%.300s': %s: going to /tmp instead", directory, strerror(errno));
		warn_step(text);
		if (chdir("/tmp") != 0 && chdir("/") != 0)
			warn_step("there is no directory to go to");
	}
	pmi = open_pmi();
	step_count = (int)next_number(&strings);
	step_tasks = calloc((size_t)step_count + 1, sizeof *step_tasks);
	for (at = 0; at < step_count; at++) {
		struct step_task *task = &step_tasks[at];
		long number = next_number(&strings), program = next_number(&strings), fed = next_number(&strings);
		int in[2] = {-1, -1}, out[2], err[2], side = -1;

		task->in = task->out = task->err = -1;
		task->taken = fed ? 0 : UINT64_MAX;
		if ((fed && pipe2(in, O_CLOEXEC) != 0) || pipe2(err, O_CLOEXEC) != 0)
			goto failed;
		if (raw && (out[0] = open_raw_terminal(&side)) >= 0)
			out[1] = side;
		else if (pipe2(out, O_CLOEXEC) != 0)
			goto failed;
		task->pid = fork();
		if (task->pid < 0)
			goto failed;
		if (task->pid == 0) {
			if (!fed)
				in[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
			setpgid(0, 0);
			dup2(in[0], 0);
			dup2(out[1], 1);
			dup2(err[1], 2);
			restore_signals();
			set_to_number("SLURM_PROCID", number);
			set_to_number("SLURM_LOCALID", at);
			set_to_number("SLURM_TASK_PID", getpid());
			/* The kernel's rank among kernels would be the same for all its tasks. */
			if (getenv("RANK") != NULL && getenv("BACKENDAI_CLUSTER_SIZE") != NULL) {
				set_to_number("RANK", number);
				setenv("WORLD_SIZE", getenv("SLURM_NTASKS"), 1);
			}
			share_gpus((int)at, (int)gpus);
			become(programs[program]);
		}
		setpgid(task->pid, task->pid);
		task->running = 1;
		if (fed) {
			close(in[0]);
			task->in = in[1];
			set_nonblocking(task->in);
		}
		close(out[1]);
		close(err[1]);
		task->out = out[0];
		task->err = err[0];
		set_nonblocking(task->out);
		set_nonblocking(task->err);
		continue;
	failed:
		snprintf(text, sizeof text, "task %ld cannot be started: %s", number, strerror(errno));
		warn_step(text);
		{
			unsigned char status[4] = {0, 0, 1, 0};

			append_of_task(&step_out, 'Q', (uint32_t)at, status, 4);
		}
	}
	if (pmi >= 0)
		close(pmi);
}

/* Closes a task's input; what was not taken is dropped. */
static void close_input(struct step_task *task)
{
	if (task->in >= 0)
		close(task->in);
	task->in = -1;
	task->input.begin = task->input.end = 0;
	task->taken = UINT64_MAX;
}

static void acknowledge(void)
{
	uint64_t least = step_received;
	int at;

	for (at = 0; at < step_count; at++)
		if (step_tasks[at].taken < least)
			least = step_tasks[at].taken;
	if (least > step_acknowledged) {
		append_of_task(&step_out, 'A', (uint32_t)(least - step_acknowledged), "", 0);
		step_acknowledged = least;
	}
}

static void signal_tasks(int number)
{
	int at;

	for (at = 0; at < step_count; at++)
		if (step_tasks[at].running)
			kill(-step_tasks[at].pid, number);
}

static int reap_tasks(void)
{
	int status, at, left = 0;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		for (at = 0; at < step_count; at++)
			if (step_tasks[at].running && step_tasks[at].pid == pid) {
				unsigned char bytes[4] = {(unsigned char)(status >> 24), (unsigned char)(status >> 16),
				                          (unsigned char)(status >> 8), (unsigned char)status};

				step_tasks[at].running = 0;
				close_input(&step_tasks[at]);
				append_of_task(&step_out, 'Q', (uint32_t)at, bytes, 4);
			}
	for (at = 0; at < step_count; at++)
		left += step_tasks[at].running;
	acknowledge();
	return left;
}

/* Kills all descendants that are left: of those whose parent has ended, this process is the parent. */
static void kill_descendants(void)
{
	int found = 1, rounds;

	for (rounds = 0; found && rounds < 1000; rounds++) {
		DIR *directory = opendir("/proc");
		struct dirent *entry;

		found = 0;
		while (directory != NULL && (entry = readdir(directory)) != NULL) {
			char path[64], line[512], state, *rest;
			int pid = atoi(entry->d_name), parent;
			FILE *file;

			if (pid <= 1)
				continue;
			snprintf(path, sizeof path, "/proc/%d/stat", pid);
			if ((file = fopen(path, "re")) == NULL)
				continue;
			line[fread(line, 1, sizeof line - 1, file)] = '\0';
			fclose(file);
			rest = strrchr(line, ')');
			if (rest == NULL || sscanf(rest + 1, " %c %d", &state, &parent) != 2 || parent != getpid())
				continue;
			found = 1;
			kill(pid, SIGKILL);
		}
		if (directory != NULL)
			closedir(directory);
		reap_tasks();
		if (found) {
			struct timespec moment = {0, 1000000};

			nanosleep(&moment, NULL);
		}
	}
}

/* Takes one frame in; returns whether it was the one that starts. */
static int obey(char letter, unsigned char *body, size_t length)
{
	int at;

	switch (letter) {
	case 'S':
		/* Arguments and variables stay where they are. */
		start_tasks(memcpy(malloc(length + 1), body, length), length);
		return 1;
	case 'I':
		step_received += length;
		for (at = 0; at < step_count; at++)
			if (step_tasks[at].in >= 0)
				append(&step_tasks[at].input, body, length);
		acknowledge();
		break;
	case 'E':
		step_input_ended = 1;
		for (at = 0; at < step_count; at++)
			if (step_tasks[at].in >= 0 && held(&step_tasks[at].input) == 0)
				close_input(&step_tasks[at]);
		break;
	case 'K':
		if (length == 1)
			signal_tasks(*body);
		break;
	}
	return 0;
}

/* Passes what a task has written on; -1 at its end. */
static int pass_output(int fd, char letter, int place)
{
	static unsigned char piece[32 * 1024];
	ssize_t got = read(fd, piece, sizeof piece);

	if (got > 0)
		append_of_task(&step_out, letter, (uint32_t)place, piece, (size_t)got);
	else if (got == 0 || (errno != EAGAIN && errno != EINTR))
		return -1;
	return 0;
}

/* Runs the tasks that srun asks for, at the descriptors of its connection. */
static int run_step(int from, int to)
{
	int started = 0, left = 0, at, children, wrong = 0, alone = 0, settled = 0;
	long deadline = 0;
	sigset_t set;

	prctl(PR_SET_CHILD_SUBREAPER, 1);
	sigfillset(&set);
	sigprocmask(SIG_SETMASK, &set, NULL);
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	children = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	fcntl(from, F_SETFD, FD_CLOEXEC);
	fcntl(to, F_SETFD, FD_CLOEXEC);
	set_nonblocking(from);
	set_nonblocking(to);
	for (;;) {
		struct pollfd polled[POLLED + 3 * (size_t)step_count];
		nfds_t count = POLLED;
		int open_outputs = 0, full = held(&step_out) >= OUTPUT_BOUND && !alone;

		polled[0] = (struct pollfd){alone ? -1 : from, POLLIN, 0};
		polled[1] = (struct pollfd){alone || held(&step_out) == 0 ? -1 : to, POLLOUT, 0};
		polled[2] = (struct pollfd){children, POLLIN, 0};
		polled[3] = (struct pollfd){full ? -1 : step_pmi, POLLIN, 0};
		for (at = 0; at < step_count; at++) {
			struct step_task *task = &step_tasks[at];

			polled[count++] = (struct pollfd){held(&task->input) > 0 ? task->in : -1, POLLOUT, 0};
			polled[count++] = (struct pollfd){full ? -1 : task->out, POLLIN, 0};
			polled[count++] = (struct pollfd){full ? -1 : task->err, POLLIN, 0};
			open_outputs += (task->out >= 0) + (task->err >= 0);
		}
		if (started && left == 0 && open_outputs == 0 && !settled) {
			append_frame(&step_out, 'Z', "", 0);
			settled = 1;
			continue;
		}
		if ((settled && held(&step_out) == 0) || (alone && left == 0))
			return 0;
		if (poll(polled, count, deadline == 0 ? -1 : (int)(deadline > milliseconds() ? deadline - milliseconds() : 0)) < 0 &&
		    errno != EINTR)
			return 1;
		if (deadline != 0 && milliseconds() >= deadline) {
			kill_descendants();
			left = reap_tasks();
			deadline = milliseconds() + 1000;
		}
		if (polled[2].revents != 0) {
			struct signalfd_siginfo information;

			while (read(children, &information, sizeof information) > 0)
				;
			left = reap_tasks();
			if (started && left == 0)
				kill_descendants();
		}
		if (polled[3].revents & POLLIN)
			refuse_pmi();
		if (polled[3].revents & POLLHUP) {
			/* No task has it open any more. */
			close(step_pmi);
			step_pmi = -1;
		}
		for (at = 0; at < step_count; at++) {
			struct step_task *task = &step_tasks[at];
			struct pollfd *own = &polled[POLLED + 3 * at];

			if (POLLED + 3 * (nfds_t)at + 2 >= count)
				break;
			if (task->in >= 0 && own[0].revents != 0) {
				size_t before = held(&task->input);

				if (drain(&task->input, task->in) != 0) {
					close_input(task);
				} else {
					task->taken += before - held(&task->input);
					if (step_input_ended && held(&task->input) == 0)
						close_input(task);
				}
				acknowledge();
			}
			if (own[1].revents != 0 && task->out >= 0 && pass_output(task->out, 'O', at) != 0) {
				close(task->out);
				task->out = -1;
			}
			if (own[2].revents != 0 && task->err >= 0 && pass_output(task->err, 'X', at) != 0) {
				close(task->err);
				task->err = -1;
			}
		}
		if (polled[1].revents != 0 && drain(&step_out, to) != 0)
			alone = 1;
		if (polled[0].revents != 0) {
			ssize_t got = fill(&step_in, from, 64 * 1024);
			unsigned char *body;
			size_t length;
			char letter;

			while ((body = next_frame(&step_in, &letter, &length, &wrong)) != NULL)
				started |= obey(letter, body, length);
			left = reap_tasks();
			if (got == 0 || wrong || (got < 0 && errno != EAGAIN && errno != EINTR))
				alone = 1;
		}
		if (alone && deadline == 0) {
			if (!started || settled)
				return 0;
			signal_tasks(SIGTERM);
			signal_tasks(SIGCONT);
			deadline = milliseconds() + END_GRACE_MS;
			step_out.begin = step_out.end = 0;
		}
	}
}
