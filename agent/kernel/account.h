/*
 * The variables of a login, which programs and scripts expect: the user's names, and its shell, which is bash where the
 * root has it. What an image or a session says counts before.
 */
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define BASH "/bin/bash"
#define ANY_SHELL "/bin/sh"

static int has_bash(void)
{
	return access(BASH, X_OK) == 0;
}

/* Sets a variable to the name that the root has for the user. No name service is asked: those load what images have. */
static void name_user(const char *variable)
{
	int file = open("/etc/passwd", O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	FILE *users = file < 0 ? NULL : fdopen(file, "r");
	struct passwd *user;
	struct stat found;

	if (users == NULL || fstat(file, &found) != 0 || !S_ISREG(found.st_mode)) {
		if (users != NULL)
			fclose(users);
		else if (file >= 0)
			close(file);
		return;
	}
	while ((user = fgetpwent(users)) != NULL)
		if (user->pw_uid == getuid() && *user->pw_name != '\0') {
			setenv(variable, user->pw_name, 1);
			break;
		}
	fclose(users);
}

/* Sets those variables of a login that are not set. A user that goes by another name has it in both. */
static void name_account(void)
{
	if (getenv("USER") == NULL && getenv("LOGNAME") == NULL)
		name_user("USER");
	if (getenv("USER") == NULL && getenv("LOGNAME") != NULL)
		setenv("USER", getenv("LOGNAME"), 1);
	if (getenv("LOGNAME") == NULL && getenv("USER") != NULL)
		setenv("LOGNAME", getenv("USER"), 1);
	/* Programs that start shells for people look at this, terminals of JupyterLab among them. */
	if (getenv("SHELL") == NULL && (has_bash() || access(ANY_SHELL, X_OK) == 0))
		setenv("SHELL", has_bash() ? BASH : ANY_SHELL, 1);
}
