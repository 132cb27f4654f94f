/*
 * First process of a container: waits at the start barrier, then becomes the parent of the user's command.
 *
 * Usage: init BARRIER OUTPUT FILTER DIRECTORY COUNT [SERVER [ARGUMENT...]] [COMMAND [ARGUMENT...]]
 *
 * BARRIER is a FIFO: a newline in it releases the command; an `s` before says that the network is ready. It is opened
 * for reading and writing, so that the death of its writer does not release the command; once a process can open it for
 * writing without blocking, this process is ready for signals.
 * OUTPUT is a pipe that becomes the command's standard error, and its standard output unless there is a pipe
 * OUTPUT.stdout for that. They are opened for reading as well, so that the death of their reader kills no writer with
 * SIGPIPE.
 * FILTER is a file with a seccomp filter (a program of classic BPF), which applies to this process and its descendants,
 * besides the engine's.
 * The command starts in DIRECTORY. One that cannot be entered ends the container, unless it is written after a `-`:
 * then the command starts where this process did.
 * COUNT is the number of words after it that make up a server: it is started at the first `s`, without input and
 * output, and its end changes nothing.
 * Without a COMMAND, the process waits for a signal. Signals are forwarded to the command, as command.h says, and
 * orphans are reaped; when the command exits, so does this process, and with it everything in the container. A command
 * that was asked to end may leave processes that are not yet done: this process waits for them, too, until it is
 * killed. Exit code: the command's, 128 + n after signal n, 127 when it is not found, 126 when it cannot be executed,
 * 214 when its directory cannot be entered.
 *
 * How the command ended is kept in the mode of BARRIER, if it belongs to this process' user: ENDED, the exit code,
 * ASKED after a signal to end that came from outside, and USED_UP after an out-of-memory kill in here; then, its time
 * of modification is their number, in seconds. The agent may be down at that time, and nothing else may record it. No
 * kernel can fill the node's disk with that. A signal is from outside when kill(2) has sent it in a process that has no
 * number in here, such as an engine that stops; the agent sends its signals with a value, as sigqueue(3) does. A
 * first process that finds ENDED, or RELEASED, which the agent sets before it releases the command, ends at once:
 * whatever starts a container again, its command does not run a second time.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "account.h"
#include "command.h"
#include "directory.h"
#include "filter.h"
#include "program.h"

#define CANNOT_RUN 126
#define NOT_FOUND 127
#define BY_SIGNAL 128
/* Maximum number of words of a server. */
#define WORDS 16
/* Arguments before the server, with the name of the program. */
#define COMMON 6
#define NOTHING -1
/* Processes that others have adopted end without a signal to this one. */
#define LOOK_MS 1000
#define NETWORK 's'
/* Bits of the barrier's mode; the lowest eight are the exit code. */
#define ENDED 01000
#define RELEASED 02000
#define USED_UP 0400
#define ASKED 04000
/* Seconds that a command may take to end after it was asked to, if that is why it ended. */
#define TO_END 120

static int output = STDERR_FILENO;
/* When a signal to end came from outside, in seconds since the node was started; 0 when none did. */
static time_t asked_from_outside;

static void complain(const char *what)
{
	dprintf(output, "init: %s: %s\n", what, strerror(errno));
}

static time_t now(void)
{
	struct timespec time;

	return clock_gettime(CLOCK_BOOTTIME, &time) == 0 ? time.tv_sec : 0;
}

/* The next signal, as a number; SIGCHLD after `wait` milliseconds, unless they are negative. */
static int take_signal(int descriptor, int wait)
{
	struct signalfd_siginfo information;
	struct pollfd ready = {.fd = descriptor, .events = POLLIN};

	if (wait >= 0 && poll(&ready, 1, wait) == 0)
		return SIGCHLD;
	while (read(descriptor, &information, sizeof information) != sizeof information)
		if (errno != EINTR && errno != EAGAIN)
			return SIGKILL;
	/* No process in here can make that up: Linux fills it in for kill(2). */
	if (information.ssi_code == SI_USER && information.ssi_pid == 0 && is_to_end((int)information.ssi_signo))
		asked_from_outside = now();
	return (int)information.ssi_signo;
}

/* Returns the number of out-of-memory kills in here, as the control group reports it; versions 1 and 2. */
static long killed_for_memory(void)
{
	const char *files[] = {"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"};
	long killed = 0;
	char line[128];
	unsigned int i;

	for (i = 0; i < sizeof files / sizeof *files; i++) {
		FILE *file = fopen(files[i], "re");

		if (file == NULL)
			continue;
		while (fgets(line, sizeof line, file) != NULL)
			if (sscanf(line, "oom_kill %ld", &killed) == 1)
				break;
		fclose(file);
	}
	return killed;
}

/* Keeps the exit code where it outlives everything here, and returns it. */
static int ended(const char *barrier, int code)
{
	long killed = killed_for_memory();
	int asked = asked_from_outside > 0 && now() - asked_from_outside <= TO_END;
	struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = killed}};

	/* First: once it has ENDED, all of it is there. */
	if (killed > 0)
		utimensat(AT_FDCWD, barrier, times, 0);
	chmod(barrier, ENDED | code | (killed > 0 ? USED_UP : 0) | (asked ? ASKED : 0));
	return code;
}

/*
 * Returns the next byte from the barrier; exits on a signal to end before,
 * which may be faster than the byte that releases.
 */
static char wait_at(int barrier, const char *path, int signals)
{
	struct pollfd ready[] = {{.fd = signals, .events = POLLIN}, {.fd = barrier, .events = POLLIN}};
	char byte;

	for (;;) {
		if (poll(ready, 2, -1) < 0)
			continue;
		if (ready[0].revents != 0) {
			int number = take_signal(signals, -1);

			if (is_to_end(number))
				exit(ended(path, BY_SIGNAL + (number < TO_ALL ? number : SIGTERM)));
		}
		if (ready[1].revents != 0 && read(barrier, &byte, 1) == 1)
			return byte;
	}
}

static void become(char **command, int to, int errors, const sigset_t *mask)
{
	int nothing = open("/dev/null", O_RDWR | O_CLOEXEC), error;
	char why[512];

	if (to < 0)
		to = errors = nothing;
	setsid();
	if (nothing < 0 || dup2(nothing, STDIN_FILENO) < 0 || dup2(to, STDOUT_FILENO) < 0 ||
	    dup2(errors, STDERR_FILENO) < 0) {
		complain("cannot redirect");
		_exit(CANNOT_RUN);
	}
	sigprocmask(SIG_SETMASK, mask, NULL);
	name_account();
	error = become_program(command, why, sizeof why);
	dprintf(output, "init: %s: %s\n", command[0], why);
	_exit(error == ENOENT ? NOT_FOUND : CANNOT_RUN);
}

/* Reaps ended children; returns the command's exit code if it is among them, else -1. */
static int reap(pid_t command)
{
	int code = -1, status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		if (pid == command)
			code = WIFSIGNALED(status) ? BY_SIGNAL + WTERMSIG(status) : WEXITSTATUS(status);
	return code;
}

/* Starts the server; the command runs without it, too. */
static void serve(char **arguments, int words, const sigset_t *mask)
{
	char *server[WORDS + 1] = {NULL};

	memcpy(server, arguments, words * sizeof *server);
	if (words > 0 && fork() == 0)
		become(server, NOTHING, NOTHING, mask);
}

int main(int count, char **arguments)
{
	sigset_t all, before;
	struct stat found;
	char path[PATH_MAX];
	int barrier, signals, printed, number, code, words, served = 0, exit_code = -1, asked = 0;
	pid_t command = 0;

	words = count < COMMON ? -1 : atoi(arguments[5]);
	if (words < 0 || words > WORDS || words > count - COMMON) {
		fprintf(stderr, "usage: init BARRIER OUTPUT FILTER DIRECTORY COUNT [SERVER [ARGUMENT...]] [COMMAND [ARGUMENT...]]\n");
		return CANNOT_RUN;
	}
	/* Processes of the same user in here get no access to this process' memory and descriptors. */
	prctl(PR_SET_DUMPABLE, 0);
	if (set_filter_of(arguments[3]) != 0) {
		complain("cannot set the filter of system calls");
		return CANNOT_RUN;
	}
	/* Before it is opened, which its mode may not allow any more. */
	if (stat(arguments[1], &found) == 0 && (found.st_mode & (ENDED | RELEASED)) != 0)
		/* As it is if nothing starts the container again: another program has killed it. */
		return BY_SIGNAL + SIGKILL;
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &before);
	signals = signalfd(-1, &all, SFD_CLOEXEC);
	output = open(arguments[2], O_RDWR | O_APPEND | O_CLOEXEC);
	snprintf(path, sizeof path, "%s.stdout", arguments[2]);
	printed = open(path, O_RDWR | O_APPEND | O_CLOEXEC);
	if (printed < 0 && errno == ENOENT)
		printed = output;
	barrier = open(arguments[1], O_RDWR | O_CLOEXEC);
	if (signals < 0 || output < 0 || printed < 0 || barrier < 0) {
		output = STDERR_FILENO;
		complain("cannot open barrier or output");
		return CANNOT_RUN;
	}
	while (wait_at(barrier, arguments[1], signals) == NETWORK) {
		serve(arguments + COMMON, served ? 0 : words, &before);
		served = 1;
	}
	close(barrier);
	if (enter(arguments[4]) != 0) {
		complain(arguments[4]);
		return ended(arguments[1], NO_DIRECTORY);
	}
	if (count > COMMON + words) {
		command = fork();
		if (command == 0)
			become(arguments + COMMON + words, printed, output, &before);
		if (command < 0) {
			complain("cannot fork");
			return CANNOT_RUN;
		}
	}
	for (;;) {
		number = take_signal(signals, exit_code >= 0 ? LOOK_MS : -1);
		if (number == SIGCHLD) {
			code = reap(command);
			exit_code = code >= 0 ? code : exit_code;
			if (exit_code >= 0 && (!asked || signal_processes(command, 0, 0) == 0))
				return ended(arguments[1], exit_code);
		} else if (command > 0 && exit_code < 0) {
			asked |= is_to_end(number);
			pass_on(command, number);
		} else if (command == 0 && is_to_end(number)) {
			return ended(arguments[1], BY_SIGNAL + (number < TO_ALL ? number : SIGTERM));
		}
	}
}
