/*
 * Runs a program by its name as execvp(3) does, and says in words why it does not run: it is for another machine, or
 * its interpreter is missing. /bin/sh runs a file of text without a `#!` line, as shells have it, and nothing else.
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define MAX_PROGRAM_WORDS 4096
/* Bytes of a file that say what it is. */
#define HEAD_SIZE 256

static const struct machine {
	unsigned int number;
	const char *name;
} machines[] = {
    {EM_X86_64, "x86_64"}, {EM_AARCH64, "aarch64"}, {EM_ARM, "arm"},    {EM_386, "i386"},  {EM_RISCV, "riscv"},
    {EM_PPC64, "ppc64"},   {EM_S390, "s390x"},      {EM_MIPS, "mips"},  {258, "loongarch"},
};

/* Writes why a file that is there was not run, after that error; an empty text when the error says it. */
static void explain_refusal(const char *path, int error, char *why, size_t size)
{
	char head[HEAD_SIZE + 1] = "";
	int file = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t length = file < 0 ? -1 : read(file, head, HEAD_SIZE);
	struct utsname here;
	unsigned int number, at;

	*why = '\0';
	if (file >= 0)
		close(file);
	if (length < (ssize_t)sizeof(Elf32_Half) + EI_NIDENT + 2 || memcmp(head, ELFMAG, SELFMAG) != 0) {
		if (error == ENOENT && length > 2 && head[0] == '#' && head[1] == '!')
			snprintf(why, size, "its interpreter is missing: %.*s", (int)strcspn(head + 2, "\r\n"), head + 2);
		else if (error == ENOENT && length >= 0)
			snprintf(why, size, "a part of it is missing");
		else if (error == ENOEXEC)
			snprintf(why, size, "it is not a program");
		return;
	}
	if (error == ENOENT) {
		snprintf(why, size, "its loader is missing: it was built for other system libraries");
		return;
	}
	if (error != ENOEXEC || uname(&here) != 0)
		return;
	number = head[EI_DATA] == ELFDATA2MSB ? (unsigned char)head[18] << 8 | (unsigned char)head[19]
	                                      : (unsigned char)head[19] << 8 | (unsigned char)head[18];
	for (at = 0; at < sizeof machines / sizeof *machines; at++)
		if (machines[at].number == number && strcmp(machines[at].name, here.machine) != 0) {
			snprintf(why, size, "it is a program for %s, and this machine is %s", machines[at].name, here.machine);
			return;
		}
	snprintf(why, size, "it is not a program for this machine, which is %s", here.machine);
}

static int is_text(const char *path)
{
	char head[HEAD_SIZE];
	int file = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t length = file < 0 ? -1 : read(file, head, sizeof head);

	if (file >= 0)
		close(file);
	return length >= 0 && memchr(head, '\0', (size_t)length) == NULL;
}

static void run_as_script(const char *path, char **words)
{
	static char *script[MAX_PROGRAM_WORDS + 2] = {"sh"};
	int count = 0;

	script[1] = (char *)path;
	for (; words[count] != NULL && count < MAX_PROGRAM_WORDS; count++)
		script[count + 1] = count == 0 ? (char *)path : words[count];
	if (words[count] == NULL)
		execv("/bin/sh", script);
	errno = ENOEXEC;
}

/* Becomes the program `words`. When it returns, the result is the error, and `why` says it in words. */
static int become_program(char **words, char *why, size_t size)
{
	const char *search = getenv("PATH"), *end;
	char path[PATH_MAX], seen[PATH_MAX] = "";
	int error = ENOENT;

	if (search == NULL)
		search = DEFAULT_PATH;
	for (;; search = end + 1) {
		end = search + strcspn(search, ":");
		if (strchr(words[0], '/') != NULL || *words[0] == '\0')
			snprintf(path, sizeof path, "%s", words[0]);
		else
			snprintf(path, sizeof path, "%.*s%s%s", (int)(end - search), search, end > search ? "/" : "", words[0]);
		execv(path, words);
		if (errno == ENOEXEC && is_text(path))
			run_as_script(path, words);
		/* What is found and cannot be run counts before what is not found further on. */
		if (errno == EACCES || (errno == ENOENT && *seen == '\0' && access(path, F_OK) == 0)) {
			error = errno;
			snprintf(seen, sizeof seen, "%s", path);
		} else if (errno != ENOENT && errno != ENOTDIR) {
			error = errno;
			snprintf(seen, sizeof seen, "%s", path);
			break;
		}
		if (*end == '\0' || strchr(words[0], '/') != NULL)
			break;
	}
	*why = '\0';
	if (*seen != '\0')
		explain_refusal(seen, error, why, size);
	if (*why == '\0')
		snprintf(why, size, "%s", strerror(error));
	return error;
}
