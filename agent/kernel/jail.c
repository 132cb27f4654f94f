/*
 * First command of a jail, which holds no other program than a server: gives up all rights, waits at a gate,
 * then becomes the server.
 *
 * Usage: jail UID GID PORT KEY BYTES UMASK SERVER [ARGUMENT...]
 *
 * Writes a newline to standard output once it is ready, and reads lines from standard input: an empty one lets the
 * server go, and others mean nothing to it. The server's output goes to standard error, a line for each write: names in
 * it, which anyone may choose who connects, begin no line of their own. KEY is a file that belongs to UID, and that the
 * server reads at its start only: it is emptied as soon as something listens on PORT of the loopback,
 * because users of the server could read it otherwise.
 *
 * As the shell of the jail's account it is called with `-c COMMAND`: it becomes rsync where COMMAND begins with
 * `rsync --server`, and refuses all else.
 *
 * No file is written beyond BYTES, unless these are 0. What programs of the jail send to /dev/log, which is made here,
 * goes to standard error by the same way: `internal-sftp` says there which files it opens and closes.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "rights.h"

#define CANNOT_RUN 126
/* For a server that is being started: between two looks, and at the most. */
#define PAUSE_NANOSECONDS 5000000
#define LOOKS 6000
#define LOG "/dev/log"
#define UMASK "RETINUE_UMASK"
#define RSYNC "/usr/bin/rsync"
/*
 * Names of files of four bytes for each of theirs, as the server writes bytes that are no letters, twice,
 * and some words.
 */
#define LINE 40000
/* "<PRIORITY>Mmm dd hh:mm:ss ": how long what comes after the priority is. */
#define TIME 16

static void fail(const char *what)
{
	dprintf(STDERR_FILENO, "jail: %s: %s\n", what, strerror(errno));
	_exit(CANNOT_RUN);
}

/* Returns once the gate is open. */
static void wait_at_gate(void)
{
	char character, last = '\n';

	for (;;) {
		if (read(STDIN_FILENO, &character, 1) != 1)
			_exit(CANNOT_RUN);
		if (character == '\n' && last == '\n')
			return;
		last = character;
	}
}

static int listens(int port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
	int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), found;

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	found = connection >= 0 && connect(connection, (struct sockaddr *)&address, sizeof address) == 0;
	if (connection >= 0)
		close(connection);
	return found;
}

/* Empties the key once the server has read it, in a process that the server is not the parent of. */
static void empty_later(const char *key, int port)
{
	struct timespec pause = {0, PAUSE_NANOSECONDS};
	pid_t child = fork();

	if (child < 0)
		fail("fork");
	if (child > 0) {
		while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
			;
		return;
	}
	if (fork() != 0)
		_exit(0);
	for (int look = 0; look < LOOKS && !listens(port); look++)
		nanosleep(&pause, NULL);
	if (chmod(key, 0600) || truncate(key, 0) || chmod(key, 0))
		fail(key);
	_exit(0);
}

/* Returns a socket at the place that logs are sent to. */
static int listen_log(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = LOG};
	int log = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (log < 0 || bind(log, (struct sockaddr *)&address, sizeof address) || chmod(LOG, 0666))
		fail(LOG);
	return log;
}

/* Returns a socket that sends there what is written to it, a line for each write. */
static int connect_log(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = LOG};
	int output = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (output < 0 || connect(output, (struct sockaddr *)&address, sizeof address))
		fail(LOG);
	return output;
}

/*
 * Copies logs to standard error, in a process that the server is not the parent of.
 * A line is what one write takes whole, in pieces else.
 */
static void copy_logs(int log)
{
	static char line[LINE];
	pid_t child = fork();

	if (child < 0)
		fail("fork");
	if (child > 0) {
		while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
			;
		close(log);
		return;
	}
	if (fork() != 0)
		_exit(0);
	for (;;) {
		ssize_t size = recv(log, line, sizeof line - 1, 0), start = 0, place;

		if (size < 0 && errno == EINTR)
			continue;
		if (size < 0)
			_exit(0);
		if (size > 0 && line[0] == '<')
			while (start < size && line[start++] != '>')
				;
		/* What comes without a priority is the server's output, and has no time. */
		if (start > 0 && start + TIME < size && line[start + TIME - 1] == ' ')
			start += TIME;
		/* What the server writes is printable; nothing else makes more lines of one. */
		for (place = start; place < size; place++)
			if ((unsigned char)line[place] < ' ' || line[place] == 127)
				line[place] = '?';
		while (size > start && line[size - 1] == '?')
			size--;
		line[size++] = '\n';
		while (start < size) {
			ssize_t written = write(STDERR_FILENO, line + start, size - start);

			if (written < 0 && errno != EINTR)
				_exit(0);
			if (written > 0)
				start += written;
		}
	}
}

static int ends_word(char character)
{
	return character == ' ' || character == '\0';
}

/*
 * Takes one word off a command as a client of rsync quotes it: with backslashes before characters that a shell reads,
 * or in quotes. `pattern` gets it with a backslash before each of those, as `glob` reads it, `word` without.
 * Returns whether a shell would look for names.
 */
static int take_word(char **position, char *word, char *pattern)
{
	char *from = *position, quote = '\0';
	int looks = 0;

	for (; *from != '\0' && (quote != '\0' || !ends_word(*from)); from++) {
		if (quote == '\0' && (*from == '\'' || *from == '"')) {
			quote = *from;
			continue;
		}
		if (quote != '\0' && *from == quote) {
			quote = '\0';
			continue;
		}
		if (*from == '\\' && quote != '\'' && from[1] != '\0') {
			from++;
			*pattern++ = '\\';
		} else if (quote != '\0' || *from == '\\') {
			*pattern++ = '\\';
		} else if (*from == '*' || *from == '?' || *from == '[') {
			looks = 1;
		}
		*pattern++ = *from;
		*word++ = *from;
	}
	*word = *pattern = '\0';
	while (*from == ' ')
		from++;
	*position = from;
	return looks;
}

/* Says in the log what a connection runs: rsync does not name its files there. */
static void log_command(const char *command)
{
	/* The time is left out again. */
	char line[LINE];
	int log = connect_log(), length = snprintf(line, sizeof line, "<6>Jan  1 00:00:00 rsync[%d]: %s", getpid(), command);

	(void)!write(log, line, length < LINE ? (size_t)length : LINE - 1);
	close(log);
}

/*
 * Returns whether a word makes a daemon of the server, or lets the client send more words by the connection, unseen.
 * A daemon takes its configuration, and programs to run, from a mount. What follows an `e` are the client's abilities.
 */
static int frees(const char *word)
{
	if (word[0] != '-')
		return 0;
	if (word[1] == '-')
		return strncmp(word, "--daemon", strlen("--daemon")) == 0 ||
		       strncmp(word, "--secluded-args", strlen("--secluded-args")) == 0 ||
		       strncmp(word, "--protect-args", strlen("--protect-args")) == 0;
	return word[1 + strcspn(word + 1, "se")] == 's';
}

/* Adds a word to those of a command, which end in NULL; without memory it is left out, and `count` says so. */
static int add_word(char ***words, size_t *count, char *word)
{
	char **longer = word == NULL ? NULL : realloc(*words, (*count + 2) * sizeof *longer);

	if (longer == NULL)
		return -1;
	*words = longer;
	longer[(*count)++] = word;
	longer[*count] = NULL;
	return 0;
}

static int serve_rsync(char *command)
{
	char **words = NULL;
	size_t length = strlen(command) + 1, count = 0;
	char *word = malloc(length), *pattern = malloc(2 * length), *position = command;
	int paths = 0, refused = word == NULL || pattern == NULL, looks;

	log_command(command);
	/* The server has set one of its own. */
	if (getenv(UMASK) != NULL)
		umask((mode_t)strtoul(getenv(UMASK), NULL, 8));
	while (*position == ' ')
		position++;
	while (*position != '\0' && !refused) {
		glob_t found;

		looks = take_word(&position, word, pattern);
		/* What follows the `.` are paths; those of a sender may be patterns. */
		if (paths && looks && glob(pattern, GLOB_NOCHECK, NULL, &found) == 0) {
			for (size_t at = 0; at < found.gl_pathc; at++)
				refused |= add_word(&words, &count, found.gl_pathv[at]) != 0;
			continue;
		}
		paths |= strcmp(word, ".") == 0;
		refused |= add_word(&words, &count, strdup(word)) != 0;
	}
	/* rsync takes options behind paths, too: from a name that was found as well. */
	for (size_t at = 0; at < count; at++)
		refused |= frees(words[at]);
	if (count < 2 || strcmp(words[0], "rsync") != 0 || strcmp(words[1], "--server") != 0 || refused ||
	    access(RSYNC, X_OK) != 0) {
		dprintf(STDOUT_FILENO, "This service allows sftp and rsync connections only.\n");
		return 1;
	}
	execv(RSYNC, words);
	fail(RSYNC);
	return CANNOT_RUN;
}

int main(int count, char **arguments)
{
	char *environment[] = {"PATH=/usr/sbin", "LANG=C.UTF-8", NULL}, nothing[] = "";
	struct rlimit no_core = {0, 0}, largest;
	const char *problem;
	int null, log, errors, output;

	if (count < 8)
		return serve_rsync(count == 3 && strcmp(arguments[1], "-c") == 0 ? arguments[2] : nothing);
	log = listen_log();
	output = connect_log();
	problem = give_up_rights(strtoul(arguments[1], NULL, 10), strtoul(arguments[2], NULL, 10));
	if (problem != NULL)
		fail(problem);
	setrlimit(RLIMIT_CORE, &no_core);
	largest.rlim_cur = largest.rlim_max = strtoull(arguments[5], NULL, 10);
	/* A write beyond it fails, instead of ending who writes. */
	if (largest.rlim_cur > 0 && (signal(SIGXFSZ, SIG_IGN) == SIG_ERR || setrlimit(RLIMIT_FSIZE, &largest)))
		fail("the size of files cannot be limited");
	umask((mode_t)strtoul(arguments[6], NULL, 8));
	if (write(STDOUT_FILENO, "\n", 1) != 1)
		fail("no agent waits at the start barrier");
	wait_at_gate();
	null = open("/dev/null", O_RDONLY);
	if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
		fail("input and output");
	copy_logs(log);
	empty_later(arguments[4], atoi(arguments[3]));
	errors = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	if (errors < 0 || dup2(output, STDOUT_FILENO) < 0 || dup2(output, STDERR_FILENO) < 0)
		fail("output");
	execve(arguments[7], arguments + 7, environment);
	dup2(errors, STDERR_FILENO);
	fail(arguments[7]);
}
