/*
 * Writes what a kernel prints from a pipe into a file, so that the kernel itself cannot reach the file.
 * Runs on the node.
 *
 * Usage: pump PIPE FILE LIMIT    descriptors, and bytes
 *
 * Returns once a child continues in the background: it outlives the caller, and exits after the last writer of the
 * pipe. The lock that came with FILE is held until then. The space of the oldest part is freed when the file takes an
 * eighth more than LIMIT. Offsets stay valid: what cannot be written, to a full disk, is a hole.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE (64 * 1024)
#define BLOCK 4096
#define SECTOR 512
/* The part of the limit that may be written between two checks of the file's size. */
#define LOOKS 32

static void give_back(int file, off_t limit)
{
	struct stat status;
	off_t length;

	if (fstat(file, &status) != 0 || status.st_blocks * SECTOR <= limit + limit / 8)
		return;
	length = (status.st_size - limit) / BLOCK * BLOCK;
	if (length > 0)
		fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, length);
}

static void write_all(int file, off_t offset, const char *data, ssize_t length)
{
	ssize_t count;

	while (length > 0) {
		count = pwrite(file, data, (size_t)length, offset);
		if (count < 0 && errno == EINTR)
			continue;
		if (count <= 0) {
			/* A full disk does not block the kernel. */
			(void)!ftruncate(file, offset + length);
			return;
		}
		data += count;
		offset += count;
		length -= count;
	}
}

int main(int count, char **arguments)
{
	static char piece[PIECE];
	int pipe, file;
	off_t offset, limit, since = 0;
	ssize_t length;
	pid_t child;

	if (count != 4) {
		fprintf(stderr, "usage: pump PIPE FILE LIMIT\n");
		return 2;
	}
	pipe = atoi(arguments[1]);
	file = atoi(arguments[2]);
	limit = (off_t)strtoll(arguments[3], NULL, 10);
	offset = lseek(file, 0, SEEK_END);
	if (offset < 0 || fcntl(pipe, F_SETFL, 0) != 0) {
		perror("pump");
		return 1;
	}
	child = fork();
	if (child != 0)
		return child < 0;
	setsid();
	for (;;) {
		length = read(pipe, piece, sizeof piece);
		if (length < 0 && errno == EINTR)
			continue;
		if (length <= 0)
			return length < 0;
		write_all(file, offset, piece, length);
		offset += length;
		since += length;
		if (since > limit / LOOKS) {
			give_back(file, limit);
			since = 0;
		}
	}
}
