/*
 * Sets a filter of system calls on the calling process, and on all that it starts.
 *
 * A filter is a program of classic BPF, as libseccomp exports it.
 */
#ifndef FILTER_H
#define FILTER_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <unistd.h>

/* Instructions; Linux takes no more. */
#define LONGEST_FILTER 4096
#define FILTER_MODE 2

/* As in <linux/filter.h>, which not every C library brings along. */
struct instruction {
	uint16_t code;
	uint8_t jump_true, jump_false;
	uint32_t operand;
};
struct filter {
	unsigned short length;
	struct instruction *instructions;
};

/* Reads a filter from the start of a file and closes the descriptor; -1 with `errno` set when there is none. */
static inline int read_filter(int descriptor, struct filter *filter)
{
	static struct instruction instructions[LONGEST_FILTER + 1];
	ssize_t count = pread(descriptor, instructions, sizeof instructions, 0);

	if (count < 0)
		return -1;
	close(descriptor);
	if (count == 0 || (size_t)count == sizeof instructions || (size_t)count % sizeof *instructions != 0) {
		errno = EINVAL;
		return -1;
	}
	filter->instructions = instructions;
	filter->length = (unsigned short)((size_t)count / sizeof *instructions);
	return 0;
}

/*
 * Sets a filter, for good; those that are set already stay, and the strictest of them decides.
 * -1 with `errno` set on failure.
 */
static inline int set_filter(const struct filter *filter)
{
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
		return -1;
	return prctl(PR_SET_SECCOMP, FILTER_MODE, filter) != 0 ? -1 : 0;
}

/* Sets the filter that a file holds. -1 with `errno` set on failure. */
static inline int set_filter_of(const char *path)
{
	struct filter filter;
	int descriptor = open(path, O_RDONLY | O_CLOEXEC);

	return descriptor < 0 || read_filter(descriptor, &filter) != 0 ? -1 : set_filter(&filter);
}

#endif
