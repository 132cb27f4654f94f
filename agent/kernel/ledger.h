/*
 * The processors that steps of a job use, in a file of the kernel in which they were started: a step that finds too
 * few waits for others to end. Steps whose srun has ended, however it did, no longer count.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define LEDGER_ENTRIES 4096

struct ledger_entry {
	int32_t pid, node, cpus;
	uint64_t begun;
};

struct ledger {
	uint32_t next_step, count;
	struct ledger_entry entries[LEDGER_ENTRIES];
};

/* Returns when a process has begun, in ticks of the kernel; 0 when there is none. */
static uint64_t begin_of(pid_t pid)
{
	char path[64], line[1024], *rest;
	unsigned long long begun = 0;
	FILE *file;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	file = fopen(path, "re");
	if (file == NULL)
		return 0;
	line[fread(line, 1, sizeof line - 1, file)] = '\0';
	fclose(file);
	/* The name may hold anything. */
	rest = strrchr(line, ')');
	if (rest == NULL ||
	    sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &begun) != 1)
		return 0;
	return begun;
}

/* Opens and locks the ledger of a job, without what has ended; -1 where no file can be made. */
static int open_ledger(struct ledger *ledger, const char *job)
{
	const char *directories[] = {"/dev/shm", getenv("TMPDIR"), "/tmp"};
	size_t at, kept = 0;
	char path[512];
	struct stat seen;
	int fd = -1;

	memset(ledger, 0, sizeof *ledger);
	for (at = 0; at < 3 && fd < 0; at++) {
		if (directories[at] == NULL)
			continue;
		snprintf(path, sizeof path, "%.200s/.srun-%u-%.200s", directories[at], (unsigned)geteuid(), job);
		fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
		if (fd >= 0 && (fstat(fd, &seen) != 0 || !S_ISREG(seen.st_mode) || seen.st_uid != geteuid())) {
			close(fd);
			fd = -1;
		}
	}
	if (fd < 0)
		return -1;
	while (flock(fd, LOCK_EX) != 0 && errno == EINTR)
		;
	if (pread(fd, ledger, sizeof *ledger, 0) < (ssize_t)(2 * sizeof(uint32_t)) || ledger->count > LEDGER_ENTRIES)
		memset(ledger, 0, sizeof *ledger);
	for (at = 0; at < ledger->count; at++)
		if (begin_of(ledger->entries[at].pid) == ledger->entries[at].begun)
			ledger->entries[kept++] = ledger->entries[at];
	ledger->count = (uint32_t)kept;
	return fd;
}

static void use_processors(struct ledger *ledger, int node, int cpus)
{
	if (ledger->count < LEDGER_ENTRIES)
		ledger->entries[ledger->count++] = (struct ledger_entry){getpid(), node, cpus, begin_of(getpid())};
}

static int used_processors(const struct ledger *ledger, int node)
{
	uint32_t at;
	int used = 0;

	for (at = 0; at < ledger->count; at++)
		if (ledger->entries[at].node == node)
			used += ledger->entries[at].cpus;
	return used;
}

/* Closes the ledger, with `keep` as it is now. */
static void close_ledger(int fd, const struct ledger *ledger, int keep)
{
	size_t length = sizeof *ledger - (LEDGER_ENTRIES - ledger->count) * sizeof *ledger->entries;

	if (fd < 0)
		return;
	if (keep && (pwrite(fd, ledger, length, 0) < 0 || ftruncate(fd, (off_t)length) < 0))
		perror("srun: the list of steps");
	close(fd);
}
