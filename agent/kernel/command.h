/*
 * The processes of a command, for first processes: those of its session, and their descendants. What others run beside
 * it (servers of ssh, commands of callers) has sessions and parents of its own, and is left alone.
 *
 * Signals that a first process gets are passed on to the command alone. Two ranges of real-time signals stand for
 * another signal, by its place in `meant`: for all processes of the command, which is to end, and for those that the
 * command has started, or itself if there are none.
 */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#define TO_ALL 40
#define TO_STARTED 50
#define MAX_PROCESSES 32768

static const int meant[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGCONT, SIGWINCH, SIGKILL};

#define MEANINGS ((int)(sizeof meant / sizeof *meant))

struct process {
	pid_t pid, parent;
	int ours;
};

/* Reads the living processes; `ours` are those of the session. */
static int read_processes(pid_t session, struct process *found)
{
	DIR *directory = opendir("/proc");
	struct dirent *entry;
	int count = 0;

	while (directory != NULL && count < MAX_PROCESSES && (entry = readdir(directory)) != NULL) {
		int pid = atoi(entry->d_name), parent, group, of;
		char path[64], line[512], state, *rest;
		FILE *file;

		if (pid <= 1)
			continue;
		snprintf(path, sizeof path, "/proc/%d/stat", pid);
		file = fopen(path, "re");
		if (file == NULL)
			continue;
		line[fread(line, 1, sizeof line - 1, file)] = '\0';
		fclose(file);
		/* The name may hold anything. */
		rest = strrchr(line, ')');
		if (rest == NULL || sscanf(rest + 1, " %c %d %d %d", &state, &parent, &group, &of) != 4 || state == 'Z' ||
		    state == 'X')
			continue;
		found[count++] = (struct process){pid, parent, of == session};
	}
	if (directory != NULL)
		closedir(directory);
	return count;
}

/* Sends a signal, 0 for none, to the processes of a command, but for `except`; returns how many there are. */
static int signal_processes(pid_t command, int number, pid_t except)
{
	static struct process found[MAX_PROCESSES];
	int count = read_processes(command, found), at, parent, changed = 1, ours = 0;

	while (changed)
		for (changed = 0, at = 0; at < count; at++)
			for (parent = 0; parent < count && !found[at].ours; parent++)
				if (found[parent].ours && found[parent].pid == found[at].parent)
					changed = found[at].ours = 1;
	for (at = 0; at < count; at++)
		if (found[at].ours && found[at].pid != except) {
			ours++;
			if (number > 0)
				kill(found[at].pid, number);
		}
	return ours;
}

static int is_to_end(int number)
{
	return number == SIGTERM || number == SIGINT || number == SIGHUP || number == SIGQUIT ||
	       (number >= TO_ALL && number < TO_ALL + MEANINGS);
}

/* Passes a signal on to whom it is for. */
static void pass_on(pid_t command, int number)
{
	if (number >= TO_ALL && number < TO_ALL + MEANINGS)
		signal_processes(command, meant[number - TO_ALL], 0);
	else if (number < TO_STARTED || number >= TO_STARTED + MEANINGS)
		kill(command, number);
	else if (signal_processes(command, meant[number - TO_STARTED], command) == 0)
		kill(command, meant[number - TO_STARTED]);
}
