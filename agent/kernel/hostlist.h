/*
 * Lists of hosts as Slurm writes them: `main1,sub[1-3,07]` stands for main1, sub1, sub2, sub3 and sub07.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_HOSTS 65536

struct hosts {
	char **names;
	int count;
};

static int add_host(struct hosts *hosts, const char *text, size_t length)
{
	if (length == 0 || hosts->count == MAX_HOSTS)
		return -1;
	hosts->names = realloc(hosts->names, (size_t)(hosts->count + 1) * sizeof *hosts->names);
	hosts->names[hosts->count++] = strndup(text, length);
	return 0;
}

/* Adds the names of one part, of which a bracket may hold several; 0, or -1 when it is none. */
static int add_part(struct hosts *hosts, const char *part, size_t length)
{
	const char *open = memchr(part, '[', length), *close, *at;
	char name[512];

	if (open == NULL)
		return memchr(part, ']', length) != NULL ? -1 : add_host(hosts, part, length);
	close = memchr(open, ']', length - (size_t)(open - part));
	if (close == NULL || memchr(close, '[', length - (size_t)(close - part)) != NULL || length > 255)
		return -1;
	for (at = open + 1; at < close;) {
		char *end;
		long first = strtol(at, &end, 10), last = first;
		int width = (int)(end - at);

		if (!isdigit((unsigned char)*at) || width > 9)
			return -1;
		if (*end == '-') {
			at = end + 1;
			last = strtol(at, &end, 10);
			if (!isdigit((unsigned char)*at) || end - at > 9)
				return -1;
		}
		if (end != close && *end != ',')
			return -1;
		for (; first <= last; first++) {
			int made = snprintf(name, sizeof name, "%.*s%0*ld%.*s", (int)(open - part), part, width, first,
			                    (int)(length - (size_t)(close + 1 - part)), close + 1);

			if (add_host(hosts, name, (size_t)made) != 0)
				return -1;
		}
		at = end == close ? close : end + 1;
	}
	return 0;
}

/* Reads a list; returns 0, or -1 when it is none. */
static int read_hosts(const char *text, struct hosts *hosts)
{
	const char *at = text, *begin = text;
	int depth = 0;

	*hosts = (struct hosts){0};
	for (;; at++) {
		depth += (*at == '[') - (*at == ']');
		if (*at != '\0' && (*at != ',' || depth != 0))
			continue;
		if (at > begin && add_part(hosts, begin, (size_t)(at - begin)) != 0)
			return -1;
		begin = at + 1;
		if (*at == '\0')
			return depth == 0 ? 0 : -1;
	}
}

static int find_host(const struct hosts *hosts, const char *name)
{
	int at;

	for (at = 0; at < hosts->count; at++)
		if (strcmp(hosts->names[at], name) == 0)
			return at;
	return -1;
}

/* Returns how many characters of a name come before the number at its end, of at most nine digits. */
static size_t before_number(const char *name)
{
	size_t length = strlen(name), at = length;

	while (at > 0 && length - at < 9 && isdigit((unsigned char)name[at - 1]))
		at--;
	return at;
}

/* Writes a list in its short form, with brackets for names that differ in the number at their end. */
static void write_hosts(FILE *to, char *const *names, int count)
{
	int at = 0, next, run;

	while (at < count) {
		size_t stem = before_number(names[at]), digits = strlen(names[at]) - stem;

		for (next = at + 1; next < count && digits > 0 && before_number(names[next]) == stem &&
		                    strlen(names[next]) - stem == digits && strncmp(names[next], names[at], stem) == 0;
		     next++)
			;
		if (at > 0)
			fputc(',', to);
		if (next - at <= 1) {
			fputs(names[at], to);
			at++;
			continue;
		}
		fprintf(to, "%.*s[", (int)stem, names[at]);
		for (; at < next; at += run) {
			for (run = 1; at + run < next && atol(names[at + run] + stem) == atol(names[at] + stem) + run; run++)
				;
			fputs(names[at] + stem, to);
			if (run > 1)
				fprintf(to, "-%s", names[at + run - 1] + stem);
			if (at + run < next)
				fputc(',', to);
		}
		fputc(']', to);
	}
}
