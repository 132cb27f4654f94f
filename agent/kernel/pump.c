/*
 * Writes what a kernel prints from pipes into a file, so that the kernel itself cannot reach the file.
 * Runs on the node.
 *
 * Usage: pump PIPE FILE LIMIT [STDOUT INDEX]    descriptors, and bytes
 *
 * Returns once a child continues in the background: it outlives the caller, and exits after the last writer of PIPE.
 * The lock that came with FILE is held until then. The space of the oldest part is freed when the file takes an
 * eighth more than LIMIT. Offsets stay valid: what cannot be written, to a full disk or one that has become read-only,
 * is a hole, as soon as the file can be made longer.
 *
 * With STDOUT, that is the kernel's standard output, open for writing too, and PIPE its standard error. Both go to FILE
 * in the order in which they arrive here: no error overtakes standard output that was printed before it. INDEX says
 * which bytes came from which: spans of 16 bytes each, in order, that `agent/inside/streams.py` reads. It is bounded as
 * FILE is. A span is there before its bytes are; where spans overlap, the later one counts. What cannot be indexed is
 * written all the same.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE (64 * 1024)
#define BLOCK 4096
#define SECTOR 512
/* The part of the limit that may be written between two checks of the file's size. */
#define LOOKS 32
/* The index is bounded to this part of the limit. */
#define INDEX_PART 16
#define LONGEST_SPAN (1u << 30)
/* Milliseconds between two tries to make a file longer that could not be, and how often after the end. */
#define AGAIN 1000
#define LAST_TRIES 600

enum stream { STANDARD_OUTPUT = 1, STANDARD_ERROR = 2 };

struct span {
	uint64_t start;
	uint32_t length;
	/* The stream in the last two bits, and a check of all in the others. */
	uint32_t mark;
};

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

/* Returns whether the file is as long as what came. */
static int write_all(int file, off_t offset, const char *data, ssize_t length)
{
	ssize_t count;

	while (length > 0) {
		count = pwrite(file, data, (size_t)length, offset);
		if (count < 0 && errno == EINTR)
			continue;
		if (count <= 0) {
			/* A full disk does not block the kernel. */
			return ftruncate(file, offset + length) == 0;
		}
		data += count;
		offset += count;
		length -= count;
	}
	return 1;
}

/* Adds to the index that the next bytes come from a stream; returns the index, or -1 once it cannot be written. */
static int note(int index, off_t offset, ssize_t length, enum stream stream, off_t limit)
{
	static struct span last;
	static off_t at = -1, looked;
	uint32_t check;

	if (index < 0)
		return index;
	if (at >= 0 && (last.mark & 3) == stream && (off_t)(last.start + last.length) == offset &&
	    last.length < LONGEST_SPAN) {
		last.length += (uint32_t)length;
	} else {
		at = at >= 0 ? at + (off_t)sizeof last : lseek(index, 0, SEEK_END) / (off_t)sizeof last * (off_t)sizeof last;
		last.start = (uint64_t)offset;
		last.length = (uint32_t)length;
	}
	check = ((uint32_t)last.start ^ (uint32_t)(last.start >> 32) ^ last.length ^ (uint32_t)stream) * 2654435761u;
	last.mark = (check & ~3u) | stream;
	if (pwrite(index, &last, sizeof last, at) != (ssize_t)sizeof last) {
		close(index);
		return -1;
	}
	if (at - looked > limit / INDEX_PART / LOOKS) {
		give_back(index, limit / INDEX_PART);
		looked = at;
	}
	return index;
}

int main(int count, char **arguments)
{
	static char piece[PIECE];
	struct pollfd pipes[] = {{.fd = -1, .events = POLLIN}, {.fd = -1, .events = POLLIN}};
	int file, index = -1, ended = 0, number, whole = 1, tries = 0;
	off_t offset, limit, since = 0;
	ssize_t length;
	pid_t child;

	if (count != 4 && count != 6) {
		fprintf(stderr, "usage: pump PIPE FILE LIMIT [STDOUT INDEX]\n");
		return 2;
	}
	pipes[1].fd = atoi(arguments[1]);
	file = atoi(arguments[2]);
	limit = (off_t)strtoll(arguments[3], NULL, 10);
	if (count == 6) {
		pipes[0].fd = atoi(arguments[4]);
		index = atoi(arguments[5]);
	}
	offset = lseek(file, 0, SEEK_END);
	if (offset < 0 || fcntl(pipes[1].fd, F_SETFL, O_NONBLOCK) != 0 ||
	    (pipes[0].fd >= 0 && fcntl(pipes[0].fd, F_SETFL, O_NONBLOCK) != 0)) {
		perror("pump");
		return 1;
	}
	child = fork();
	if (child != 0)
		return child < 0;
	setsid();
	/* A limit of file sizes is to be as a full disk. */
	signal(SIGXFSZ, SIG_IGN);
	for (;;) {
		/* After the end of one, all that is left in the other is taken. */
		if (poll(pipes, 2, whole ? (ended ? 0 : -1) : AGAIN) < 0)
			continue;
		/* Readers learn of what is lost by the length of the file. */
		whole = whole || ftruncate(file, offset) == 0;
		if (ended && (pipes[0].revents & POLLIN) == 0) {
			if (whole || ++tries > LAST_TRIES)
				return ended < 0;
			continue;
		}
		for (number = 0; number < 2; number++) {
			/* There may be standard output since, which was printed before the errors that are there. */
			if (pipes[number].fd < 0 || (number == 1 && pipes[number].revents == 0))
				continue;
			length = read(pipes[number].fd, piece, sizeof piece);
			if (length < 0 && (errno == EINTR || errno == EAGAIN))
				continue;
			if (length <= 0) {
				ended = number == 0 || length < 0 ? -1 : 1;
				pipes[number].fd = -1;
				continue;
			}
			index = note(index, offset, length, number == 0 ? STANDARD_OUTPUT : STANDARD_ERROR, limit);
			whole = write_all(file, offset, piece, length);
			offset += length;
			since += length;
			if (since > limit / LOOKS) {
				give_back(file, limit);
				since = 0;
			}
		}
	}
}
