/*
 * The Python that is put inside kernels, for images of any kind: becomes the interpreter beside it, run by the dynamic
 * linker and with the libraries beside it, so that nothing of an image is needed. Static itself;
 * Python takes it for its own executable.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#ifndef ROOT
#define ROOT "/run/kernel/python"
#endif

int main(int count, char **arguments)
{
	char *fixed[] = {ROOT "/lib/linker", "--argv0", ROOT "/bin/python3", "--library-path", ROOT "/lib", ROOT "/bin/interpreter"};
	size_t known = sizeof fixed / sizeof *fixed, at;
	char **all = calloc(known + (size_t)count + 1, sizeof *all);

	if (all == NULL)
		return 126;
	for (at = 0; at < known; at++)
		all[at] = fixed[at];
	for (at = 1; at < (size_t)count; at++)
		all[known + at - 1] = arguments[at];
	execv(all[0], all);
	perror(all[0]);
	return 127;
}
