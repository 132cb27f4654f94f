/*
 * Runs one command inside a kernel for a caller outside, and leaves nothing of it behind unless the caller says so.
 *
 * Usage:
 *   attach confine FILTER
 *      inside a container already, as `docker exec` starts it: sets the filter of system calls in the file FILTER, on
 *      top of the engine's
 *   attach
 *      the same without a filter
 *   attach enter PIDFD FILTER UID GID [PROCS...]
 *      on the node: joins the control groups whose cgroup.procs are PROCS and the namespaces of the process behind
 *      PIDFD, and becomes the user, for good; the system calls of all that runs then are those the filter (a program of
 *      classic BPF, read from the descriptor FILTER) allows
 *
 * Standard input and output carry frames: a letter, four bytes of length, most significant first, and so many bytes.
 * Frames in:
 *   S  start a command: strings that end in NUL (the sum of 1 for a terminal, 2 for orphans that survive, 4 for a
 *      command that survives itself and has neither input nor output; rows, columns, directory, number of arguments,
 *      arguments, variables as NAME=VALUE)
 *   D  start a command that survives, once: path of its log, directory, number of arguments, arguments, variables
 *   I  input
 *   E  end of input
 *   R  rows and columns, two bytes each
 *   K  a signal, one byte
 * Frames out:
 *   P  the command runs
 *   O  standard output
 *   X  standard error
 *   A  so many bytes of input were written to the command
 *   Q  exit code
 *   F  the command cannot be started, with the reason
 *   U  the command of `D` runs already: another process holds the lock on its log
 * At most WINDOW bytes of input are unacknowledged, so that a command that does not read
 * delays neither signals nor the end.
 *
 * When the command exits, all its descendants are killed, orphans included; this process then waits for the caller to
 * close the connection. When standard input ends (the caller has closed it, or died) or on SIGTERM (the client of an
 * engine has closed its connection), the command gets SIGHUP, and all of it is killed one second later. Orphans that
 * survive are not touched by either: they are the kernel's, and end with it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "account.h"
#include "filter.h"
#include "program.h"

#define CANNOT_RUN 126
#define NOT_FOUND 127
#define BY_SIGNAL 128
#define HEADER 5
#define PIECE (32 * 1024)
#define WINDOW (64 * 1024)
#define LARGEST_START (2 * 1024 * 1024)
#define GRACE_MS 1000
#define KILL_MS 5000
#define END_OF_TERMINAL 4
#define LAST_CAPABILITY 63
/* How a command is started. */
#define ON_TERMINAL 1
#define ORPHANS_SURVIVE 2
#define DETACHED 4
/* Frames read in a row before other descriptors are served. */
#define TURNS 64

/* Frames to be written: space for one piece of output and for small frames. */
static unsigned char out[2 * (HEADER + PIECE) + 1024];
static size_t out_begin, out_end;

/* The frame that is being read. */
static unsigned char header[HEADER];
static size_t header_length, body_length, body_wanted;
static unsigned char *body;

/* Input that is not yet written to the command. */
static unsigned char input[WINDOW];
static size_t input_begin, input_end;
static int input_ended;
static uint32_t taken;

static int terminal = -1, to_command = -1, from_command = -1, errors_of_command = -1, signals = -1;
static pid_t command;
static int exit_code = -1;
static int gone;

static long now_ms(void)
{
	struct timespec moment;

	clock_gettime(CLOCK_MONOTONIC, &moment);
	return moment.tv_sec * 1000 + moment.tv_nsec / 1000000;
}

static size_t out_room(void)
{
	if (out_begin > 0) {
		memmove(out, out + out_begin, out_end - out_begin);
		out_end -= out_begin;
		out_begin = 0;
	}
	return sizeof out - out_end;
}

static void put_frame(unsigned char kind, const void *data, size_t length)
{
	if (gone || out_room() < HEADER + length)
		return;
	out[out_end] = kind;
	out[out_end + 1] = (unsigned char)(length >> 24);
	out[out_end + 2] = (unsigned char)(length >> 16);
	out[out_end + 3] = (unsigned char)(length >> 8);
	out[out_end + 4] = (unsigned char)length;
	if (length > 0)
		memcpy(out + out_end + HEADER, data, length);
	out_end += HEADER + length;
}

static void put_number(unsigned char kind, uint32_t number)
{
	unsigned char bytes[4] = {(unsigned char)(number >> 24), (unsigned char)(number >> 16), (unsigned char)(number >> 8),
				  (unsigned char)number};

	put_frame(kind, bytes, sizeof bytes);
}

static void write_out(void)
{
	ssize_t count = write(STDOUT_FILENO, out + out_begin, out_end - out_begin);

	if (count > 0)
		out_begin += (size_t)count;
	else if (count < 0 && errno != EAGAIN && errno != EINTR)
		gone = 1;
}

static void end_all(void);

/* Reports why the command cannot be started, and exits after killing all that it started. */
static void refuse(const char *what)
{
	char text[256];
	int length = snprintf(text, sizeof text, "%s: %s", what, strerror(errno));

	fcntl(STDOUT_FILENO, F_SETFL, fcntl(STDOUT_FILENO, F_GETFL) & ~O_NONBLOCK);
	put_frame('F', text, (size_t)length < sizeof text ? (size_t)length : sizeof text - 1);
	write_out();
	end_all();
	exit(CANNOT_RUN);
}

/*
 * Sends SIGKILL to every child of this process: the command, and its orphans, which are reparented here.
 * False without a list.
 */
static int kill_children(void)
{
	FILE *list = fopen("/proc/thread-self/children", "re");
	int child;

	if (list == NULL)
		return 0;
	while (fscanf(list, "%d", &child) == 1)
		kill(child, SIGKILL);
	fclose(list);
	return 1;
}

/* Reaps one child; true while there may be more. */
static int reap(void)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		if (pid == command)
			exit_code = WIFSIGNALED(status) ? BY_SIGNAL + WTERMSIG(status) : WEXITSTATUS(status);
	return pid == 0;
}

/* Kills all descendants of the command: children of a killed process are reparented here, and are killed next. */
static void end_all(void)
{
	long deadline = now_ms() + KILL_MS;

	while (reap() && now_ms() < deadline) {
		if (!kill_children() && command > 0)
			kill(-command, SIGKILL);
		poll(NULL, 0, 2);
	}
}

static void close_one(int *descriptor)
{
	if (*descriptor >= 0)
		close(*descriptor);
	*descriptor = -1;
}

static void signal_command(int number)
{
	pid_t group = terminal >= 0 ? tcgetpgrp(terminal) : -1;

	if (exit_code < 0 && command > 0 && number > 0 && number < NSIG)
		kill(-(group > 0 ? group : command), number);
}

static void resize(const unsigned char *bytes, size_t length)
{
	struct winsize size = {0};

	if (length != 4 || terminal < 0)
		return;
	size.ws_row = (unsigned short)(bytes[0] << 8 | bytes[1]);
	size.ws_col = (unsigned short)(bytes[2] << 8 | bytes[3]);
	ioctl(terminal, TIOCSWINSZ, &size);
}

/* Returns the next string of a start frame; a missing one is an error of the sender. */
static char *next_string(char **position, char *end)
{
	char *text = *position;
	size_t length = text < end ? strnlen(text, (size_t)(end - text)) : 0;

	if (text >= end || text + length >= end) {
		errno = EPROTO;
		refuse("what to start is cut off");
	}
	*position = text + length + 1;
	return text;
}

static void become(char **arguments, const char *directory, int in, int to, int err, int failed)
{
	sigset_t none;
	int problem, number;
	char why[512];

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	for (number = 1; number < NSIG; number++)
		signal(number, SIG_DFL);
	setsid();
	if (dup2(in, STDIN_FILENO) < 0 || dup2(to, STDOUT_FILENO) < 0 || dup2(err, STDERR_FILENO) < 0)
		_exit(CANNOT_RUN);
	if (terminal >= 0)
		ioctl(STDIN_FILENO, TIOCSCTTY, 0);
	if (*directory != '\0' && chdir(directory) != 0) {
		problem = errno;
		dprintf(STDERR_FILENO, "retinue: %s: %s\n", directory, strerror(problem));
	} else {
		problem = become_program(arguments, why, sizeof why);
		dprintf(STDERR_FILENO, "retinue: %s: %s\n", arguments[0], why);
	}
	/* The end of this pipe reports to its reader that nothing runs. */
	(void)!write(failed, &problem, sizeof problem);
	_exit(problem == ENOENT ? NOT_FOUND : CANNOT_RUN);
}

/* What programs on a terminal look at, where neither the caller nor the kernel has said which one it is. */
static void name_terminal(void)
{
	const char *kind = getenv("TERM");

	if (kind == NULL || *kind == '\0') {
		setenv("TERM", "xterm-256color", 1);
		setenv("COLORTERM", "truecolor", 0);
	}
}

static int open_terminal(unsigned rows, unsigned columns)
{
	struct winsize size = {.ws_row = (unsigned short)rows, .ws_col = (unsigned short)columns};
	char *name;
	int slave;

	terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0 || (name = ptsname(terminal)) == NULL)
		refuse("cannot open a terminal");
	slave = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (slave < 0)
		refuse("cannot open a terminal");
	ioctl(terminal, TIOCSWINSZ, &size);
	return slave;
}

/* Writes the remaining frames, and exits without killing what was started. */
static void leave(void)
{
	fcntl(STDOUT_FILENO, F_SETFL, fcntl(STDOUT_FILENO, F_GETFL) & ~O_NONBLOCK);
	write_out();
	exit(0);
}

/* Reports that a detached command cannot be started, as a command that has ended with an exit code of shells. */
static void leave_without(const char *what, int problem)
{
	char text[256];
	int length = snprintf(text, sizeof text, "retinue: %s: %s\n", what, strerror(problem));

	put_frame('X', text, (size_t)length < sizeof text ? (size_t)length : sizeof text - 1);
	put_number('Q', problem == ENOENT ? NOT_FOUND : CANNOT_RUN);
	leave();
}

static void start_detached(char **arguments, const char *directory)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC), failed[2], problem = 0;

	if (null < 0 || pipe2(failed, O_CLOEXEC) != 0)
		refuse("cannot detach");
	if (*directory != '\0' && chdir(directory) != 0)
		leave_without(directory, errno);
	command = fork();
	if (command < 0)
		refuse("cannot start another process");
	if (command == 0)
		become(arguments, "", null, null, null, failed[1]);
	close(failed[1]);
	/* Closed by a successful exec. */
	if (read(failed[0], &problem, sizeof problem) != 0)
		leave_without(arguments[0], problem);
	put_frame('P', NULL, 0);
	leave();
}

static void start(char *position, size_t length)
{
	char *end = position + length, **arguments, *directory;
	int in[2] = {-1, -1}, to[2] = {-1, -1}, err[2] = {-1, -1}, failed[2], slave = -1, problem = 0;
	unsigned rows, columns, count, at;
	int manner = atoi(next_string(&position, end));
	int wanted = manner & ON_TERMINAL;

	rows = (unsigned)strtoul(next_string(&position, end), NULL, 10);
	columns = (unsigned)strtoul(next_string(&position, end), NULL, 10);
	directory = next_string(&position, end);
	count = (unsigned)strtoul(next_string(&position, end), NULL, 10);
	arguments = count > 0 && count <= length ? calloc(count + 1, sizeof *arguments) : NULL;
	if (arguments == NULL) {
		errno = EPROTO;
		refuse("there is nothing to start");
	}
	for (at = 0; at < count; at++)
		arguments[at] = next_string(&position, end);
	while (position < end)
		putenv(next_string(&position, end));
	name_account();
	if (manner & ORPHANS_SURVIVE)
		/* Orphans of the command are reparented to the kernel's first process, and live as long as the kernel. */
		prctl(PR_SET_CHILD_SUBREAPER, 0);
	if (manner & DETACHED)
		start_detached(arguments, directory);
	if (wanted) {
		name_terminal();
		slave = open_terminal(rows, columns);
	} else if (pipe2(in, O_CLOEXEC) != 0 || pipe2(to, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0)
		refuse("cannot make pipes");
	if (pipe2(failed, O_CLOEXEC) != 0)
		refuse("cannot make pipes");
	command = fork();
	if (command < 0)
		refuse("cannot start another process");
	if (command == 0)
		become(arguments, directory, wanted ? slave : in[0], wanted ? slave : to[1], wanted ? slave : err[1], failed[1]);
	close(failed[1]);
	close_one(&slave);
	close_one(&in[0]);
	close_one(&to[1]);
	close_one(&err[1]);
	to_command = wanted ? fcntl(terminal, F_DUPFD_CLOEXEC, 3) : in[1];
	from_command = wanted ? fcntl(terminal, F_DUPFD_CLOEXEC, 3) : to[0];
	errors_of_command = err[0];
	fcntl(to_command, F_SETFL, O_NONBLOCK);
	fcntl(from_command, F_SETFL, O_NONBLOCK);
	if (errors_of_command >= 0)
		fcntl(errors_of_command, F_SETFL, O_NONBLOCK);
	/* Closed by a successful exec. */
	if (read(failed[0], &problem, sizeof problem) == 0)
		put_frame('P', NULL, 0);
	close(failed[0]);
}

/*
 * Starts a command that survives, once. Its output goes to a log, on which it holds a lock for as long as it, or a
 * descendant, has the log open: so there is never a second one, and other processes can check whether it runs.
 */
static void start_apart(char *position, size_t length)
{
	char *end = position + length, **arguments, *directory, *path;
	int null, log, failed[2], problem = 0;
	unsigned count, at;
	struct stat found;

	path = next_string(&position, end);
	directory = next_string(&position, end);
	count = (unsigned)strtoul(next_string(&position, end), NULL, 10);
	arguments = count > 0 && count <= length ? calloc(count + 1, sizeof *arguments) : NULL;
	if (arguments == NULL) {
		errno = EPROTO;
		refuse("there is nothing to start");
	}
	for (at = 0; at < count; at++)
		arguments[at] = next_string(&position, end);
	while (position < end)
		putenv(next_string(&position, end));
	null = open("/dev/null", O_RDWR | O_CLOEXEC);
	log = open(path, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
	if (null < 0 || log < 0 || fstat(log, &found) != 0)
		refuse(path);
	if (!S_ISREG(found.st_mode)) {
		errno = EEXIST;
		refuse(path);
	}
	if (flock(log, LOCK_EX | LOCK_NB) != 0) {
		if (errno != EWOULDBLOCK)
			refuse(path);
		put_frame('U', NULL, 0);
		leave();
	}
	if (ftruncate(log, 0) != 0 || pipe2(failed, O_CLOEXEC) != 0)
		refuse(path);
	fcntl(log, F_SETFL, fcntl(log, F_GETFL) & ~O_NONBLOCK);
	command = fork();
	if (command < 0)
		refuse("cannot start another process");
	if (command == 0)
		become(arguments, directory, null, log, log, failed[1]);
	close(failed[1]);
	if (read(failed[0], &problem, sizeof problem) != 0) {
		errno = problem;
		refuse(arguments[0]);
	}
	put_frame('P', NULL, 0);
	leave();
}

static void take_input(const unsigned char *data, size_t length)
{
	if (input_begin > 0) {
		memmove(input, input + input_begin, input_end - input_begin);
		input_end -= input_begin;
		input_begin = 0;
	}
	if (length > sizeof input - input_end) {
		errno = EPROTO;
		refuse("more input than was asked for");
	}
	memcpy(input + input_end, data, length);
	input_end += length;
}

static void take_frame(void)
{
	const unsigned char end_of_terminal = END_OF_TERMINAL;

	switch (header[0]) {
	case 'S':
		if (command == 0) {
			start((char *)body, body_wanted);
			/* Its strings are the command's environment now. */
			body = NULL;
		}
		break;
	case 'D':
		if (command == 0)
			start_apart((char *)body, body_wanted);
		break;
	case 'I':
		if (!input_ended)
			take_input(body, body_wanted);
		break;
	case 'E':
		if (!input_ended && terminal >= 0 && input_end - input_begin < sizeof input)
			take_input(&end_of_terminal, 1);
		input_ended = 1;
		break;
	case 'R':
		resize(body, body_wanted);
		break;
	case 'K':
		if (body_wanted == 1)
			signal_command(body[0]);
		break;
	}
}

/* Reads available frames, a limited number in a row; sets `gone` when the caller has closed the connection. */
static void read_frames(void)
{
	ssize_t count = 0;
	int turns;

	for (turns = 0; turns < TURNS; turns++) {
		if (header_length < HEADER) {
			count = read(STDIN_FILENO, header + header_length, HEADER - header_length);
			if (count <= 0)
				break;
			header_length += (size_t)count;
			if (header_length < HEADER)
				continue;
			body_wanted = (size_t)header[1] << 24 | (size_t)header[2] << 16 | (size_t)header[3] << 8 | header[4];
			body_length = 0;
			body = body_wanted <= LARGEST_START ? malloc(body_wanted + 1) : NULL;
			if (body == NULL) {
				errno = EPROTO;
				refuse("too much at once");
			}
		}
		if (body_length < body_wanted) {
			count = read(STDIN_FILENO, body + body_length, body_wanted - body_length);
			if (count <= 0)
				break;
			body_length += (size_t)count;
			if (body_length < body_wanted)
				continue;
		}
		take_frame();
		free(body);
		body = NULL;
		header_length = 0;
	}
	if (turns < TURNS && (count == 0 || (errno != EAGAIN && errno != EINTR)))
		gone = 1;
}

static void write_input(void)
{
	ssize_t count = write(to_command, input + input_begin, input_end - input_begin);

	if (count < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (count < 0) {
		/* The command reads no more input: further input is discarded. */
		count = (ssize_t)(input_end - input_begin);
		close_one(&to_command);
	}
	input_begin += (size_t)count;
	taken += (uint32_t)count;
}

static void read_output(int *descriptor, unsigned char kind)
{
	static unsigned char piece[PIECE];
	ssize_t count = read(*descriptor, piece, sizeof piece);

	if (count > 0)
		put_frame(kind, piece, (size_t)count);
	else if (count == 0 || (errno != EAGAIN && errno != EINTR))
		/* A terminal that no process has open returns EIO. */
		close_one(descriptor);
}

static void take_signals(void)
{
	struct signalfd_siginfo information;

	while (read(signals, &information, sizeof information) == sizeof information)
		if (information.ssi_signo == SIGTERM)
			gone = 1;
	reap();
}

/* Relays frames until the command has exited and its output is written, or the caller has closed the connection. */
static void serve(void)
{
	int reported = 0, ended = 0;

	while (!gone && !(reported && out_begin == out_end)) {
		int room = out_room() >= HEADER + PIECE + 64;
		struct pollfd ready[] = {
		    {.fd = STDIN_FILENO, .events = POLLIN | POLLRDHUP},
		    {.fd = out_begin < out_end ? STDOUT_FILENO : -1, .events = POLLOUT},
		    {.fd = signals, .events = POLLIN},
		    {.fd = input_begin < input_end ? to_command : -1, .events = POLLOUT},
		    {.fd = room ? from_command : -1, .events = POLLIN},
		    {.fd = room ? errors_of_command : -1, .events = POLLIN},
		};

		if (poll(ready, 6, -1) < 0)
			continue;
		if (ready[2].revents != 0)
			take_signals();
		if (ready[0].revents != 0)
			read_frames();
		if (ready[1].revents != 0)
			write_out();
		if (ready[3].revents != 0)
			write_input();
		if (to_command < 0 && input_begin < input_end) {
			taken += (uint32_t)(input_end - input_begin);
			input_begin = input_end;
		}
		if (input_ended && input_begin == input_end && terminal < 0)
			close_one(&to_command);
		if (ready[4].revents != 0)
			read_output(&from_command, 'O');
		if (ready[5].revents != 0 && out_room() >= HEADER + PIECE + 64)
			read_output(&errors_of_command, 'X');
		if (taken > 0 && out_room() >= HEADER + 4) {
			put_number('A', taken);
			taken = 0;
		}
		if (exit_code >= 0 && !ended) {
			/* Without a writer, the output ends. */
			end_all();
			ended = 1;
		}
		if (ended && !reported && from_command < 0 && errors_of_command < 0 && out_room() >= HEADER + 4) {
			put_number('Q', (uint32_t)exit_code);
			reported = 1;
		}
	}
}

/*
 * Waits, after the last frame, for the caller to close the connection: frames that it still sends would reset the
 * connection, and what it has not read by then would be lost.
 */
static void linger(void)
{
	input_ended = 1;
	while (!gone) {
		struct pollfd ready[] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = signals, .events = POLLIN}};

		if (poll(ready, 2, -1) < 0)
			continue;
		if (ready[1].revents != 0)
			take_signals();
		if (ready[0].revents != 0)
			read_frames();
	}
}

/* The caller has closed the connection: the command gets a second to clean up. */
static void hang_up(void)
{
	long deadline = now_ms() + GRACE_MS;

	if (command > 0 && exit_code < 0) {
		signal_command(SIGHUP);
		signal_command(SIGCONT);
	}
	close_one(&to_command);
	while (command > 0 && exit_code < 0 && now_ms() < deadline) {
		struct pollfd ready[] = {
		    {.fd = signals, .events = POLLIN},
		    {.fd = from_command, .events = POLLIN},
		    {.fd = errors_of_command, .events = POLLIN},
		};
		long left = deadline - now_ms();

		if (poll(ready, 3, left > 0 ? (int)left : 0) <= 0)
			continue;
		if (ready[0].revents != 0)
			take_signals();
		/* Its further output is lost, but must not end it with SIGPIPE. */
		if (ready[1].revents != 0)
			read_output(&from_command, 'O');
		if (ready[2].revents != 0)
			read_output(&errors_of_command, 'X');
	}
	end_all();
}

static void write_own_number(const char *path)
{
	int descriptor = open(path, O_WRONLY | O_CLOEXEC);

	/* In cgroup.procs, 0 stands for the process that writes. */
	if (descriptor < 0 || write(descriptor, "0", 1) != 1)
		refuse("cannot join the kernel's control groups");
	close(descriptor);
}

/* Enters the kernel and becomes its user. Returns in a child, inside; the parent exits with the child's status. */
static void enter(int count, char **arguments)
{
	struct rlimit nothing = {0, 0};
	struct filter filter;
	uid_t uid;
	gid_t gid;
	int pidfd, status, capability;
	pid_t child;

	if (count < 6) {
		errno = EINVAL;
		refuse("usage: attach enter PIDFD FILTER UID GID [PROCS...]");
	}
	pidfd = atoi(arguments[2]);
	if (read_filter(atoi(arguments[3]), &filter) != 0)
		refuse("cannot read the filter of system calls");
	uid = (uid_t)strtoul(arguments[4], NULL, 10);
	gid = (gid_t)strtoul(arguments[5], NULL, 10);
	for (int at = 6; at < count; at++)
		write_own_number(arguments[at]);
	prctl(PR_SET_DUMPABLE, 0);
	if (setns(pidfd, CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWCGROUP) != 0)
		refuse("cannot enter the kernel's namespaces");
	close(pidfd);
	child = fork();
	if (child < 0)
		refuse("cannot start another process");
	if (child > 0) {
		close(STDIN_FILENO);
		close(STDOUT_FILENO);
		while (waitpid(child, &status, 0) < 0 && errno == EINTR)
			continue;
		_exit(WIFEXITED(status) ? WEXITSTATUS(status) : CANNOT_RUN);
	}
	for (capability = 0; capability <= LAST_CAPABILITY; capability++)
		prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
	setrlimit(RLIMIT_CORE, &nothing);
	if (chdir("/") != 0 || setgroups(0, NULL) != 0 || setresgid(gid, gid, gid) != 0 || setresuid(uid, uid, uid) != 0)
		refuse("cannot become the kernel's user");
	if (set_filter(&filter) != 0)
		refuse("cannot set the filter of system calls");
	prctl(PR_SET_PDEATHSIG, SIGKILL);
}

int main(int count, char **arguments)
{
	sigset_t all;

	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	signal(SIGPIPE, SIG_IGN);
	umask(022);
	if (count > 1 && strcmp(arguments[1], "enter") == 0)
		enter(count, arguments);
	/* Processes of the same user in here get no access to this process' memory and descriptors. */
	prctl(PR_SET_DUMPABLE, 0);
	if (count > 2 && strcmp(arguments[1], "confine") == 0 && set_filter_of(arguments[2]) != 0)
		refuse("cannot set the filter of system calls");
	setsid();
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	fcntl(STDIN_FILENO, F_SETFL, fcntl(STDIN_FILENO, F_GETFL) | O_NONBLOCK);
	fcntl(STDOUT_FILENO, F_SETFL, fcntl(STDOUT_FILENO, F_GETFL) | O_NONBLOCK);
	sigemptyset(&all);
	sigaddset(&all, SIGCHLD);
	sigaddset(&all, SIGTERM);
	signals = signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK);
	if (signals < 0)
		refuse("cannot wait for signals");
	serve();
	linger();
	hang_up();
	return 0;
}
