/*
 * First process of a container: waits at a gate, then becomes the parent of the user's command.
 *
 * Usage: init GATE OUTPUT FILTER COUNT [SERVER [ARGUMENT...]] [COMMAND [ARGUMENT...]]
 *
 * GATE is a FIFO: a newline in it lets the command go; an `s` before says that the network is there. It is opened for reading and writing, so that the death of whoever is to
 * write does not open it; that a process can write to it without waiting says that this process is ready for signals.
 * FILTER is a file with a filter of system calls (a program of classic BPF), set on this process and all that it starts, on
 * top of what the engine has set. OUTPUT is a pipe that becomes the command's standard output and error. It is opened for reading as well, so that the death of
 * whoever reads it ends nobody who writes. COUNT is how many of the words after it make
 * up a server that is started at the first `s`, with no input and output, and whose end changes nothing. Without a COMMAND, there is nothing but
 * waiting for a signal. Signals are passed on to the command, orphans are reaped, and when the command has ended, so does
 * this process, and with it all that is left in the container. Exit code: the command's, 128 + n after signal n, 127 when
 * it is not found, 126 when it cannot be run.
 *
 * When Linux has ended something in here because the memory was used up, GATE has no mode left at the end, if it belongs to this process' user:
 * whoever watches over the container may be away for a while, and nothing else tells it afterwards. Nobody can fill a disk with that.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "filter.h"

#define CANNOT_RUN 126
#define NOT_FOUND 127
#define BY_SIGNAL 128
/* Most words of a server. */
#define WORDS 16
/* Arguments before the server, with the name of the program. */
#define COMMON 5
#define NOTHING -1
#define NETWORK 's'

static int output = STDERR_FILENO;

static void complain(const char *what)
{
	dprintf(output, "init: %s: %s\n", what, strerror(errno));
}

static int ends(int number)
{
	return number == SIGTERM || number == SIGINT || number == SIGHUP || number == SIGQUIT;
}

/* The next signal, as a number. */
static int take_signal(int descriptor)
{
	struct signalfd_siginfo information;

	while (read(descriptor, &information, sizeof information) != sizeof information)
		if (errno != EINTR && errno != EAGAIN)
			return SIGKILL;
	return (int)information.ssi_signo;
}

/* Returns the next byte in the gate; ends the process when it is asked to end before. */
static char wait_at(int gate, int signals)
{
	struct pollfd ready[] = {{.fd = signals, .events = POLLIN}, {.fd = gate, .events = POLLIN}};
	char byte;

	for (;;) {
		if (poll(ready, 2, -1) < 0)
			continue;
		if (ready[0].revents != 0) {
			int number = take_signal(signals);

			if (ends(number))
				exit(BY_SIGNAL + number);
		}
		if (ready[1].revents != 0 && read(gate, &byte, 1) == 1)
			return byte;
	}
}

static void become(char **command, int to, const sigset_t *mask)
{
	int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (to < 0)
		to = nothing;
	setsid();
	if (nothing < 0 || dup2(nothing, STDIN_FILENO) < 0 || dup2(to, STDOUT_FILENO) < 0 ||
	    dup2(to, STDERR_FILENO) < 0) {
		complain("cannot redirect");
		_exit(CANNOT_RUN);
	}
	sigprocmask(SIG_SETMASK, mask, NULL);
	execvp(command[0], command);
	complain(command[0]);
	_exit(errno == ENOENT ? NOT_FOUND : CANNOT_RUN);
}

/* Reaps what has ended; the command's exit code if it is among that, else -1. */
static int reap(pid_t command)
{
	int code = -1, status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		if (pid == command)
			code = WIFSIGNALED(status) ? BY_SIGNAL + WTERMSIG(status) : WEXITSTATUS(status);
	return code;
}

/* How many processes in here were ended because the memory was used up, as the control group says; version 1 and 2. */
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

/* Starts the server; without it, the command runs all the same. */
static void serve(char **arguments, int words, const sigset_t *mask)
{
	char *server[WORDS + 1] = {NULL};

	memcpy(server, arguments, words * sizeof *server);
	if (words > 0 && fork() == 0)
		become(server, NOTHING, mask);
}

int main(int count, char **arguments)
{
	sigset_t all, before;
	int gate, signals, number, code, words, served = 0;
	pid_t command = 0;

	words = count < COMMON ? -1 : atoi(arguments[4]);
	if (words < 0 || words > WORDS || words > count - COMMON) {
		fprintf(stderr, "usage: init GATE OUTPUT FILTER COUNT [SERVER [ARGUMENT...]] [COMMAND [ARGUMENT...]]\n");
		return CANNOT_RUN;
	}
	/* Whoever runs in here as the same user has no business with this process' memory and descriptors. */
	prctl(PR_SET_DUMPABLE, 0);
	if (set_filter_of(arguments[3]) != 0) {
		complain("cannot set the filter of system calls");
		return CANNOT_RUN;
	}
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &before);
	signals = signalfd(-1, &all, SFD_CLOEXEC);
	output = open(arguments[2], O_RDWR | O_APPEND | O_CLOEXEC);
	gate = open(arguments[1], O_RDWR | O_CLOEXEC);
	if (signals < 0 || output < 0 || gate < 0) {
		output = STDERR_FILENO;
		complain("cannot open gate or output");
		return CANNOT_RUN;
	}
	while (wait_at(gate, signals) == NETWORK) {
		serve(arguments + COMMON, served ? 0 : words, &before);
		served = 1;
	}
	close(gate);
	if (count > COMMON + words) {
		command = fork();
		if (command == 0)
			become(arguments + COMMON + words, output, &before);
		if (command < 0) {
			complain("cannot fork");
			return CANNOT_RUN;
		}
	}
	for (;;) {
		number = take_signal(signals);
		if (number == SIGCHLD) {
			code = reap(command);
			if (code >= 0) {
				if (code > 0 && killed_for_memory() > 0)
					chmod(arguments[1], 0);
				return code;
			}
		} else if (command > 0) {
			kill(command, number);
		} else if (ends(number)) {
			return BY_SIGNAL + number;
		}
	}
}
