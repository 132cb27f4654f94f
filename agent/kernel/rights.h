/*
 * How the first program of a kernel gives up what it must not have, for good: another user, no capability, and nothing
 * but what lies beneath its root.
 */
#ifndef RIGHTS_H
#define RIGHTS_H

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Above all capabilities; Linux has some forty. */
#define CAPABILITIES 64
#define VERSION_3 0x20080522

/* Landlock, which C libraries have no functions for; these numbers are the same for every machine type. */
#define CREATE_RULESET 444
#define ADD_RULE 445
#define RESTRICT_SELF 446
#define ASK_VERSION 1
#define BENEATH_PATH 1
/* Before version 2, a process that is restricted moves no file to another directory: no program expects that. */
#define LEAST_VERSION 2
#define MAKE_CHARACTER_DEVICE (1ULL << 6)
#define MAKE_BLOCK_DEVICE (1ULL << 11)

struct beneath {
	uint64_t allowed;
	int32_t directory;
} __attribute__((packed));

/* Returns what a version of Landlock knows of access to files, as bits from the first on. */
static uint64_t known_to(long version)
{
	/* 13 from the first version on, then to move elsewhere, to cut, and from version 5 on to control devices. */
	int count = version >= 5 ? 16 : version >= 3 ? 15 : version == 2 ? 14 : 13;

	return (1ULL << count) - 1;
}

/*
 * Has Linux deny this process and all its descendants whatever does not lie beneath the root: a descriptor of a
 * directory that came from elsewhere leads nowhere. Where Linux has no Landlock, or one too old, nothing happens.
 * Returns what cannot be done, or NULL.
 */
static const char *stay_beneath_root(void)
{
	long version = syscall(CREATE_RULESET, NULL, 0, ASK_VERSION);
	struct beneath rule;
	uint64_t handled;
	int rules;

	if (version < LEAST_VERSION)
		return NULL;
	handled = known_to(version);
	rules = (int)syscall(CREATE_RULESET, &handled, sizeof handled, 0);
	if (rules < 0)
		return "Landlock has no rules";
	rule.allowed = handled & ~(MAKE_CHARACTER_DEVICE | MAKE_BLOCK_DEVICE);
	rule.directory = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (rule.directory < 0 || syscall(ADD_RULE, rules, BENEATH_PATH, &rule, 0) || syscall(RESTRICT_SELF, rules, 0))
		return "Landlock refuses";
	close(rule.directory);
	close(rules);
	return NULL;
}

/* Becomes another user for good, without any capability. Returns what cannot be done, or NULL. */
static const char *give_up_rights(uid_t user, gid_t group)
{
	struct {
		uint32_t version;
		int process;
	} header = {VERSION_3, 0};
	uint32_t none[6] = {0};

	for (int capability = 0; capability < CAPABILITIES; capability++)
		if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) && errno != EINVAL)
			return "capabilities cannot be dropped";
	if (setgroups(0, NULL) || setresgid(group, group, group) || setresuid(user, user, user))
		return "the user cannot be changed";
	if (syscall(SYS_capset, &header, none) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return "rights cannot be given up";
	return stay_beneath_root();
}

#endif
