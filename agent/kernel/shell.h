/* The shell of a kernel's user: bash where the root has it. */
#include <stdlib.h>
#include <unistd.h>

#define BASH "/bin/bash"

static int has_bash(void)
{
	return access(BASH, X_OK) == 0;
}

/* Programs that start shells for people look at this, terminals of JupyterLab among them. */
static void name_shell(void)
{
	if (getenv("SHELL") == NULL && has_bash())
		setenv("SHELL", BASH, 1);
}
