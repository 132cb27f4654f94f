/*
 * First program of a native process kernel: gives up all rights for good, and becomes the next one.
 *
 * Usage: enclose UID GID PROGRAM [ARGUMENT...]
 *
 * Of its descriptors, standard input, output and error stay open.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rights.h"

#define CANNOT_RUN 126
#define CLOSE_RANGE 436
/* Where Linux cannot close all at once: the agent leaves none open above. */
#define LAST_DESCRIPTOR 1023

static void fail(const char *what)
{
	dprintf(STDERR_FILENO, "enclose: %s: %s\n", what, strerror(errno));
	_exit(CANNOT_RUN);
}

int main(int count, char **arguments)
{
	const char *problem;

	if (count < 4) {
		errno = EINVAL;
		fail("arguments");
	}
	if (syscall(CLOSE_RANGE, STDERR_FILENO + 1, ~0U, 0))
		for (int number = STDERR_FILENO + 1; number <= LAST_DESCRIPTOR; number++)
			close(number);
	problem = give_up_rights(strtoul(arguments[1], NULL, 10), strtoul(arguments[2], NULL, 10));
	if (problem != NULL)
		fail(problem);
	execv(arguments[3], arguments + 3);
	fail(arguments[3]);
	return CANNOT_RUN;
}
