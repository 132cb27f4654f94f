/*
 * Reaches what runs in a virtual machine, for the agent: run by `attach`, as the kernel's user.
 *
 * Usage: reach port PORT ADDRESS...    connects to the first address where something listens, and is a pipe to it
 *        reach socket PATH             the same for a Unix socket, through no link
 *        reach is-socket PATH          exit code 0 if there is one
 *        reach look PATH               prints 1 or 0, the log of a program that runs or not, and the last of the log
 *        reach writers PATH            prints number and start time of processes that hold the lock on the log
 *        reach signal NUMBER PID START sends a signal to a process
 *
 * A pipe begins with a byte from this program, once it is connected. Exit code: 111 when nothing listens.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define CLOSED 111
#define PIECE (32 * 1024)
#define TAIL (16 * 1024)

static int write_all(int to, const char *data, ssize_t length)
{
	while (length > 0) {
		ssize_t count = write(to, data, (size_t)length);

		if (count < 0 && errno == EINTR)
			continue;
		if (count <= 0)
			return -1;
		data += count;
		length -= count;
	}
	return 0;
}

/* Carries bytes both ways, until the other end has closed. */
static int carry(int sock)
{
	static char piece[PIECE];
	int reading = 1;

	if (write_all(STDOUT_FILENO, "\n", 1) != 0)
		return 1;
	for (;;) {
		struct pollfd ready[] = {{.fd = reading ? STDIN_FILENO : -1, .events = POLLIN}, {.fd = sock, .events = POLLIN}};
		ssize_t count;

		if (poll(ready, 2, -1) < 0)
			continue;
		if (ready[0].revents != 0) {
			count = read(STDIN_FILENO, piece, sizeof piece);
			if (count <= 0) {
				reading = 0;
				shutdown(sock, SHUT_WR);
			} else if (write_all(sock, piece, count) != 0) {
				reading = 0;
			}
		}
		if (ready[1].revents != 0) {
			count = read(sock, piece, sizeof piece);
			if (count <= 0 || write_all(STDOUT_FILENO, piece, count) != 0)
				return 0;
		}
	}
}

static int connect_port(int port, char **addresses)
{
	for (; *addresses != NULL; addresses++) {
		struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
		struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
		int is_six = strchr(*addresses, ':') != NULL, on = 1, sock;

		if (inet_pton(is_six ? AF_INET6 : AF_INET, *addresses, is_six ? (void *)&six.sin6_addr : (void *)&four.sin_addr) != 1)
			continue;
		sock = socket(is_six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
		if (connect(sock, is_six ? (struct sockaddr *)&six : (struct sockaddr *)&four, is_six ? sizeof six : sizeof four) == 0)
			return carry(sock);
		close(sock);
	}
	return CLOSED;
}

static int is_socket(const char *path)
{
	struct stat found;
	char *real = realpath(path, NULL);

	/* No part of it may be a link. */
	return real != NULL && strcmp(real, path) == 0 && lstat(path, &found) == 0 && S_ISSOCK(found.st_mode);
}

static int connect_socket(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (strlen(path) >= sizeof address.sun_path || !is_socket(path))
		return CLOSED;
	strcpy(address.sun_path, path);
	return connect(sock, (struct sockaddr *)&address, sizeof address) == 0 ? carry(sock) : CLOSED;
}

static int open_log(const char *path, struct stat *found)
{
	int log = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);

	return log >= 0 && fstat(log, found) == 0 && S_ISREG(found->st_mode) ? log : -1;
}

static int look(const char *path)
{
	static char tail[TAIL];
	struct stat found;
	int log = open_log(path, &found), runs;
	ssize_t count;

	if (log < 0)
		return write_all(STDOUT_FILENO, "0", 1) != 0;
	runs = flock(log, LOCK_SH | LOCK_NB) != 0;
	count = pread(log, tail, TAIL, found.st_size > TAIL ? found.st_size - TAIL : 0);
	return write_all(STDOUT_FILENO, runs ? "1" : "0", 1) != 0 || write_all(STDOUT_FILENO, tail, count) != 0;
}

static unsigned long long start_of(int pid)
{
	char path[64], text[1024], *at;
	unsigned long long start = 0;
	FILE *file;
	size_t count;

	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	file = fopen(path, "re");
	if (file == NULL)
		return 0;
	count = fread(text, 1, sizeof text - 1, file);
	fclose(file);
	text[count] = '\0';
	at = strrchr(text, ')');
	if (at != NULL)
		sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &start);
	return start;
}

static int holds_lock(int pid, const struct stat *log)
{
	char path[300], line[300];
	struct dirent *entry;
	int found = 0;
	DIR *all;

	snprintf(path, sizeof path, "/proc/%d/fd", pid);
	all = opendir(path);
	while (all != NULL && !found && (entry = readdir(all)) != NULL) {
		struct stat there;
		FILE *about;

		snprintf(path, sizeof path, "/proc/%d/fd/%.20s", pid, entry->d_name);
		if (stat(path, &there) != 0 || there.st_dev != log->st_dev || there.st_ino != log->st_ino)
			continue;
		snprintf(path, sizeof path, "/proc/%d/fdinfo/%.20s", pid, entry->d_name);
		about = fopen(path, "re");
		/* A process that only reads it, or opened it by itself, has no lock. */
		while (about != NULL && fgets(line, sizeof line, about) != NULL)
			found |= strstr(line, "FLOCK") != NULL;
		if (about != NULL)
			fclose(about);
	}
	if (all != NULL)
		closedir(all);
	return found;
}

static int writers(const char *path)
{
	struct stat log;
	struct dirent *entry;
	DIR *all = opendir("/proc");

	if (open_log(path, &log) < 0)
		return 0;
	while (all != NULL && (entry = readdir(all)) != NULL) {
		int pid = atoi(entry->d_name);

		if (pid > 0 && holds_lock(pid, &log))
			printf("%d %llu\n", pid, start_of(pid));
	}
	return 0;
}

int main(int count, char **words)
{
	signal(SIGPIPE, SIG_IGN);
	if (count >= 3 && strcmp(words[1], "port") == 0)
		return connect_port(atoi(words[2]), words + 3);
	if (count == 3 && strcmp(words[1], "socket") == 0)
		return connect_socket(words[2]);
	if (count == 3 && strcmp(words[1], "is-socket") == 0)
		return !is_socket(words[2]);
	if (count == 3 && strcmp(words[1], "look") == 0)
		return look(words[2]);
	if (count == 3 && strcmp(words[1], "writers") == 0)
		return writers(words[2]);
	if (count == 5 && strcmp(words[1], "signal") == 0)
		return start_of(atoi(words[3])) == strtoull(words[4], NULL, 10) ? kill(atoi(words[3]), atoi(words[2])) != 0 : 0;
	fprintf(stderr, "usage: reach port|socket|is-socket|look|writers|signal ...\n");
	return 2;
}
