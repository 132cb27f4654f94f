/* The directory in which a kernel's command starts. */
#include <unistd.h>

/* Exit code where it cannot be entered: the command is not started. */
#define NO_DIRECTORY 214

/* Enters a directory; one that is written after a `-` is left alone where it cannot be entered. */
static int enter(const char *directory)
{
	if (*directory != '-')
		return chdir(directory);
	(void)!chdir(directory + 1);
	return 0;
}
