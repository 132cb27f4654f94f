/*
 * First process of a virtual machine: assembles the root, waits at the start barrier,
 * then becomes the parent of the user's command.
 *
 * It is reached over virtio-serial ports, by name: `control` (the agent's frames), `output` (what the command prints),
 * `status` (lines `killed KILLS` as memory is used up, and at the end `exit CODE KILLS`) and `stream.N` (a connection
 * starts the program `attach` on it). The last line of the kernel's console says why it gave up.
 *
 * Frames are a letter, four bytes of length, most significant first, and so many bytes. Each frame in begins with four
 * bytes that its answer repeats, followed by fields: four bytes of length, so many bytes, and a NUL. Frames in:
 *   S  the specification; every field begins with a letter:
 *      h hostname, r kind of root (9p or squashfs), u user, g group, x further group, s size of /dev/shm,
 *      n limit of processes, d directory in which the command starts, as directory.h says,
 *      f file (three more fields: mode, owner or empty for root, content), m mount (two more fields: name in the share,
 *      `r` or `w`), w directory for names of programs of ours (the first that takes one), p program of ours that gets a
 *      name unless there is one, c text before the configuration of an ssh client, v argument of the server, a argument
 *      of the command, e variable
 *   N  an interface: hardware address as the device has it, the address it shall have, IP address or empty, prefix,
 *      MTU, and gateway with its hardware address, or both empty
 *   V  start the server    K  send the command a signal, as command.h says
 *   G  start the command, at the time of the node in seconds and nanoseconds, if that is given
 * Frames out: B the machine has booted; A answer: the four bytes, and an error number.
 *
 * A stream begins with `R` and eight bytes, which are sent back: the port belongs to the caller then,
 * and is passed to `attach`.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <net/route.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "account.h"
#include "command.h"
#include "directory.h"
#include "program.h"

#define STREAMS 24
#define HEADER 5
#define GREETING 9
#define LARGEST (4 * 1024 * 1024)
#define MAX_FIELDS 8192
#define MAX_GROUPS 1024
#define MAX_PLACES 64
#define MAX_DESCRIPTORS 256
/* Most open files of a process, as in containers. */
#define OPEN_FILES 65536
#define HOME "/home/work"
#define SH ":/bin/sh\n"
#define OWN "/run/kernel"
/* Ports are found, and the last output is taken, within this many tries of a millisecond. */
#define TRIES 5000
/*
 * Readiness of a port is looked at again after this time: virtio-serial sends no event for
 * some changes of its other end.
 */
#define LOOK_MS 500
/* An answer that the port did not take is offered again after this time. */
#define RESEND_MS 20

struct stream {
	char path[64];
	int port;
	pid_t attach;
	unsigned char greeting[GREETING];
	size_t greeted;
};

static struct stream streams[STREAMS];
static int events = -1, control = -1, status = -1, output = -1, printed[2] = {-1, -1};
static pid_t command, server;
/* Of the command, once it has ended; whether it was asked to. */
static int exit_code = -1, asked;
static volatile int drained;

static uid_t user = 60000;
static gid_t group = 60000;
static gid_t groups[MAX_GROUPS];
static size_t group_count;
static const char *directory = ".", *places[MAX_PLACES];
static size_t place_count;
static rlim_t processes = RLIM_INFINITY;
static char *arguments[MAX_FIELDS + 1], *variables[MAX_FIELDS + 1], *server_arguments[MAX_FIELDS + 1];
static int argument_count, variable_count, server_count, assembled;

static unsigned char frame[LARGEST + HEADER];
static size_t frame_length;
static unsigned char unsent[512];
static size_t unsent_length;

static void complain(const char *what)
{
	fprintf(stderr, "guest: %s: %s\n", what, strerror(errno));
}

static void power_off(void)
{
	sync();
	reboot(RB_POWER_OFF);
	for (;;)
		pause();
}

static void give_up(const char *what)
{
	complain(what);
	power_off();
}

/*
 * Has a descriptor looked at when something happens to it. Edge-triggered:
 * a port whose other end is closed is always ready.
 */
static void watch(int descriptor, uint32_t what)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u32 = what};

	epoll_ctl(events, EPOLL_CTL_ADD, descriptor, &event);
}

/* ---- the machine ---- */

static void load_modules(void)
{
	FILE *order = fopen("/modules/order", "re");
	char name[200], path[256];
	int file;

	while (order != NULL && fgets(name, sizeof name, order) != NULL) {
		name[strcspn(name, "\n")] = '\0';
		snprintf(path, sizeof path, "/modules/%s", name);
		file = open(path, O_RDONLY | O_CLOEXEC);
		if (file < 0 || (syscall(SYS_finit_module, file, "", 0) != 0 && errno != EEXIST))
			complain(path);
		close(file);
	}
	if (order != NULL)
		fclose(order);
}

/* Finds a port by its name; leaves its path in `path`. */
static int find_port(const char *name, char *path)
{
	char file[600], found[64];
	struct dirent *entry;
	int tries;

	for (tries = 0; tries < TRIES; tries++, usleep(1000)) {
		DIR *ports = opendir("/sys/class/virtio-ports");

		while (ports != NULL && (entry = readdir(ports)) != NULL) {
			snprintf(file, sizeof file, "/sys/class/virtio-ports/%s/name", entry->d_name);
			FILE *text = fopen(file, "re");

			found[0] = '\0';
			if (text != NULL && fgets(found, sizeof found, text) != NULL)
				found[strcspn(found, "\n")] = '\0';
			if (text != NULL)
				fclose(text);
			if (strcmp(found, name) == 0) {
				snprintf(path, 64, "/dev/%.50s", entry->d_name);
				closedir(ports);
				return open(path, O_RDWR | O_CLOEXEC);
			}
		}
		if (ports != NULL)
			closedir(ports);
	}
	errno = ENODEV;
	return -1;
}

/* Returns whether the machine was started only to find out that it boots. */
static int is_probe(void)
{
	char line[4096];
	FILE *file = fopen("/proc/cmdline", "re");
	size_t count = file != NULL ? fread(line, 1, sizeof line - 1, file) : 0;

	line[count] = '\0';
	return strstr(line, "retinue.probe") != NULL;
}

static int find_needed(const char *name)
{
	char path[64];
	int port = find_port(name, path);

	if (port < 0)
		give_up(name);
	return port;
}

/* ---- the root ---- */

static void make_directories(const char *path)
{
	char part[4096];
	size_t at, length = strlen(path);

	if (length >= sizeof part)
		return;
	for (at = 1; at <= length; at++)
		if (path[at] == '/' || path[at] == '\0') {
			memcpy(part, path, at);
			part[at] = '\0';
			if (mkdir(part, 0755) == 0 && strncmp(part, HOME "/", sizeof HOME) == 0)
				(void)!chown(part, user, group);
		}
}

static int mount_share(const char *tag, const char *target, const char *cache, unsigned long flags)
{
	char options[200];

	mkdir(target, 0755);
	snprintf(options, sizeof options, "trans=virtio,version=9p2000.L,msize=262144,access=any,cache=%s", cache);
	return mount(tag, target, "9p", flags, options);
}

static int copy_program(int directory, const char *from, const char *to)
{
	static char piece[65536];
	int in = openat(directory, from, O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
	ssize_t count = -1;

	while (in >= 0 && out >= 0 && (count = read(in, piece, sizeof piece)) > 0)
		if (write(out, piece, (size_t)count) != count)
			count = -1;
	fchmod(out, 0711);
	close(in);
	close(out);
	return count == 0 ? 0 : -1;
}

/* Assembles the root over what the agent shows, read-only, and enters it. Returns an error number. */
static int assemble(const char *kind, const char *shared_memory)
{
	static const char *const moved[] = {"/dev", "/proc", "/sys"};
	char text[200];
	unsigned at;
	int first;

	mkdir("/lower", 0755);
	mkdir("/rw", 0755);
	mkdir("/new", 0755);
	if (strcmp(kind, "squashfs") == 0) {
		if (mount("/dev/vda", "/lower", "squashfs", MS_RDONLY, NULL) != 0)
			return errno;
	} else if (mount_share("root", "/lower", "loose", MS_RDONLY) != 0) {
		return errno;
	}
	if (mount("tmpfs", "/rw", "tmpfs", 0, "mode=0755,size=50%") != 0)
		return errno;
	mkdir("/rw/upper", 0755);
	mkdir("/rw/work", 0755);
	if (mount("overlay", "/new", "overlay", 0, "lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work") != 0)
		return errno;
	if (mount_share("share", "/share", "mmap", MS_NOSUID | MS_NODEV) != 0)
		return errno;
	for (at = 0; at < sizeof moved / sizeof *moved; at++) {
		snprintf(text, sizeof text, "/new%s", moved[at]);
		mkdir(text, 0755);
		if (mount(moved[at], text, NULL, MS_MOVE, NULL) != 0)
			return errno;
	}
	mkdir("/new/share", 0700);
	if (mount("/share", "/new/share", NULL, MS_MOVE, NULL) != 0)
		return errno;
	first = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (chdir("/new") != 0 || mount(".", "/", NULL, MS_MOVE, NULL) != 0 || chroot(".") != 0 || chdir("/") != 0)
		return errno;
	/* From in here only: what leads there may be a link of the image, which leads to another place out there. */
	make_directories(HOME);
	if (mount("/share/work", HOME, NULL, MS_BIND, NULL) != 0)
		return errno;
	make_directories(OWN);
	if (mount("tmpfs", OWN, "tmpfs", MS_NODEV, "mode=0755,size=4m") != 0 ||
	    copy_program(first, "attach", OWN "/attach") != 0 || copy_program(first, "reach", OWN "/reach") != 0 ||
	    copy_program(first, "srun", OWN "/srun") != 0)
		return errno;
	close(first);
	mkdir("/tmp", 01777);
	mkdir("/dev/shm", 01777);
	mkdir("/dev/pts", 0755);
	snprintf(text, sizeof text, "mode=1777%s%s", *shared_memory != '\0' ? ",size=" : "", shared_memory);
	if (mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777") != 0 ||
	    mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, text) != 0 ||
	    mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "ptmxmode=0666,mode=620") != 0)
		return errno;
	(void)!symlink("/proc/self/fd", "/dev/fd");
	(void)!symlink("fd/0", "/dev/stdin");
	(void)!symlink("fd/1", "/dev/stdout");
	(void)!symlink("fd/2", "/dev/stderr");
	return 0;
}

/* Writes a file of ours, whatever the image has there. */
static int write_file(const char *path, const char *mode, const char *owner, const char *content, size_t length)
{
	char directory[4096];
	const char *slash = strrchr(path, '/');
	int file, error = 0;

	if (slash == NULL || (size_t)(slash - path) >= sizeof directory)
		return EINVAL;
	memcpy(directory, path, (size_t)(slash - path));
	directory[slash - path] = '\0';
	make_directories(directory);
	unlink(path);
	file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (file < 0)
		return errno;
	if (write(file, content, length) != (ssize_t)length || fchmod(file, (mode_t)strtoul(mode, NULL, 8)) != 0 ||
	    (*owner != '\0' && fchown(file, user, group) != 0))
		error = errno;
	close(file);
	return error;
}

/*
 * Puts a line at the head of a text file. What an image has there instead of a plain file is replaced,
 * and never waited for.
 */
static void prepend(const char *path, const char *line)
{
	static char text[1 << 20];
	struct stat found;
	int file = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	ssize_t length = 0;

	if (file >= 0 && fstat(file, &found) == 0 && S_ISREG(found.st_mode))
		length = read(file, text, sizeof text);
	if (file >= 0)
		close(file);
	make_directories("/etc");
	unlink(path);
	file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (file < 0 || write(file, line, strlen(line)) < 0 || (length > 0 && write(file, text, (size_t)length) < 0))
		complain(path);
	if (file >= 0)
		close(file);
}

/* Gives bash to the users whose home is the kernel's. */
static void use_bash(void)
{
	static char text[1 << 20];
	int file = open("/etc/passwd", O_RDONLY | O_CLOEXEC);
	ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
	char *from = text, *found;
	FILE *out;

	close(file);
	if (length <= 0)
		return;
	text[length] = '\0';
	out = fopen("/etc/passwd", "we");
	if (out == NULL)
		return complain("/etc/passwd");
	for (; (found = strstr(from, HOME SH)) != NULL; from = found + strlen(HOME SH))
		fprintf(out, "%.*s" HOME ":" BASH "\n", (int)(found - from), from);
	fputs(from, out);
	fclose(out);
}

static int bind_share(const char *target, const char *name, int writable)
{
	char source[300];

	if (snprintf(source, sizeof source, "/share/%s", name) >= (int)sizeof source)
		return EINVAL;
	make_directories(target);
	if (mount(source, target, NULL, MS_BIND, NULL) != 0)
		return errno;
	if (mount(NULL, target, NULL, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV | (writable ? 0 : MS_RDONLY), NULL) != 0)
		return errno;
	return 0;
}

static int has_program(const char *name)
{
	static const char *const searched[] = {"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"};
	char path[300];
	unsigned at;

	for (at = 0; at < sizeof searched / sizeof *searched; at++) {
		snprintf(path, sizeof path, "%s/%.200s", searched[at], name);
		if (access(path, F_OK) == 0)
			return 1;
	}
	return 0;
}

static int is_directory(const char *path)
{
	struct stat found;

	return stat(path, &found) == 0 && S_ISDIR(found.st_mode);
}

/* Gives a program of ours a name in the first directory that takes one, or has one already. */
static void name_program(const char *target, const char *name, const char *const *in, size_t count)
{
	char path[4096];
	size_t at;

	for (at = 0; at < count; at++) {
		make_directories(in[at]);
		if (snprintf(path, sizeof path, "%s/%.200s", in[at], name) >= (int)sizeof path)
			continue;
		if (symlink(target, path) == 0 || (errno == EEXIST && is_directory(in[at])))
			return;
	}
	complain(name);
}

/* Gives a program of ours a name where programs are searched for, unless there is one. */
static void plant(const char *name)
{
	static const char *const shells[] = {"/bin"};
	char target[300];

	if (has_program(name))
		return;
	snprintf(target, sizeof target, OWN "/bin/%.200s", name);
	if (strcmp(name, "sh") == 0)
		name_program(target, name, shells, 1);
	else
		name_program(target, name, places, place_count);
}

/* Gives the program that starts the tasks of a job its names, before those of an image's own, which have no cluster. */
static void plant_steps(void)
{
	name_program(OWN "/srun", "srun", places, place_count);
	name_program(OWN "/srun", "scontrol", places, place_count);
}

/* ---- fields ---- */

struct field {
	char *text;
	uint32_t length;
};

static uint32_t number(const unsigned char *bytes)
{
	return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* Splits what follows the first four bytes of a frame; returns the number of fields, or -1. */
static int split(unsigned char *body, size_t length, struct field *fields)
{
	size_t at = 4;
	int count = 0;

	while (at < length) {
		uint32_t size;

		if (count == MAX_FIELDS || length - at < 5)
			return -1;
		size = number(body + at);
		if (size > length - at - 5 || body[at + 4 + size] != '\0')
			return -1;
		fields[count].text = (char *)body + at + 4;
		fields[count++].length = size;
		at += 5 + (size_t)size;
	}
	return count;
}

/* ---- what the agent asks for ---- */

static int specify(unsigned char *body, size_t length)
{
	static struct field fields[MAX_FIELDS];
	const char *kind = "9p", *shared_memory = "";
	char line[200];
	/* Arguments and variables stay where they are. */
	unsigned char *kept = assembled ? NULL : malloc(length);
	int count, at, error;

	if (assembled)
		return 0;
	if (kept == NULL)
		return ENOMEM;
	memcpy(kept, body, length);
	count = split(kept, length, fields);
	if (count < 0)
		return EPROTO;
	for (at = 0; at < count; at++) {
		char *value = fields[at].text + 1;

		switch (*fields[at].text) {
		case 'h':
			sethostname(value, strlen(value));
			break;
		case 'r':
			kind = value;
			break;
		case 'u':
			user = (uid_t)strtoul(value, NULL, 10);
			break;
		case 'g':
			group = (gid_t)strtoul(value, NULL, 10);
			break;
		case 'x':
			if (group_count == MAX_GROUPS)
				return E2BIG;
			groups[group_count++] = (gid_t)strtoul(value, NULL, 10);
			break;
		case 's':
			shared_memory = value;
			break;
		case 'd':
			directory = value;
			break;
		case 'w':
			if (place_count == MAX_PLACES)
				return E2BIG;
			places[place_count++] = value;
			break;
		case 'n':
			processes = strtoul(value, NULL, 10);
			break;
		case 'v':
			server_arguments[server_count++] = value;
			break;
		case 'a':
			arguments[argument_count++] = value;
			break;
		case 'e':
			variables[variable_count++] = value;
			break;
		}
		if (*fields[at].text == 'f')
			at += 3;
		else if (*fields[at].text == 'm')
			at += 2;
	}
	error = assemble(kind, shared_memory);
	if (error != 0)
		return error;
	snprintf(line, sizeof line, "work:x:%u:%u::" HOME SH, user, group);
	prepend("/etc/passwd", line);
	snprintf(line, sizeof line, "work:x:%u:\n", group);
	prepend("/etc/group", line);
	/* Before directories of the node cover some of the root: names of ours have no place in those. */
	plant_steps();
	for (at = 0; at < count && error == 0; at++) {
		char *value = fields[at].text + 1;

		if (*fields[at].text == 'f' && at + 3 < count) {
			error = write_file(value, fields[at + 1].text, fields[at + 2].text, fields[at + 3].text, fields[at + 3].length);
			at += 3;
		} else if (*fields[at].text == 'm' && at + 2 < count) {
			error = bind_share(value, fields[at + 1].text, *fields[at + 2].text == 'w');
			at += 2;
		} else if (*fields[at].text == 'c' && has_program("ssh")) {
			make_directories("/etc/ssh");
			prepend("/etc/ssh/ssh_config", value);
		} else if (*fields[at].text == 'p') {
			plant(value);
		}
	}
	if (has_bash())
		use_bash();
	assembled = error == 0;
	return error;
}

static int hardware_address(const char *text, unsigned char *address)
{
	unsigned m[6];
	int at;

	if (sscanf(text, "%x:%x:%x:%x:%x:%x", m, m + 1, m + 2, m + 3, m + 4, m + 5) != 6)
		return -1;
	for (at = 0; at < 6; at++)
		address[at] = (unsigned char)m[at];
	return 0;
}

/* Finds the interface that has a hardware address now, or `wanted` already. */
static int find_interface(int sock, const char *current, const char *wanted, char *name)
{
	struct if_nameindex *all = if_nameindex(), *one;
	unsigned char a[6], b[6];
	int found = -1;

	if (all == NULL || hardware_address(current, a) != 0 || hardware_address(wanted, b) != 0)
		return -1;
	for (one = all; one->if_index != 0; one++) {
		struct ifreq request = {0};

		strncpy(request.ifr_name, one->if_name, IFNAMSIZ - 1);
		if (ioctl(sock, SIOCGIFHWADDR, &request) == 0 &&
		    (memcmp(request.ifr_hwaddr.sa_data, a, 6) == 0 || memcmp(request.ifr_hwaddr.sa_data, b, 6) == 0)) {
			strcpy(name, one->if_name);
			found = 0;
		}
	}
	if_freenameindex(all);
	return found;
}

static int set_address(int sock, struct ifreq *request, unsigned long what, uint32_t address)
{
	struct sockaddr_in *to = (struct sockaddr_in *)&request->ifr_addr;

	memset(&request->ifr_addr, 0, sizeof request->ifr_addr);
	to->sin_family = AF_INET;
	to->sin_addr.s_addr = address;
	return ioctl(sock, what, request);
}

static int join_network(struct field *fields, int count)
{
	struct ifreq request = {0};
	int sock = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), error = 0;
	unsigned prefix;

	if (count != 7 || find_interface(sock, fields[0].text, fields[1].text, request.ifr_name) != 0) {
		close(sock);
		return ENODEV;
	}
	prefix = (unsigned)atoi(fields[3].text);
	ioctl(sock, SIOCGIFFLAGS, &request);
	request.ifr_flags &= ~IFF_UP;
	ioctl(sock, SIOCSIFFLAGS, &request);
	memset(&request.ifr_hwaddr, 0, sizeof request.ifr_hwaddr);
	request.ifr_hwaddr.sa_family = ARPHRD_ETHER;
	hardware_address(fields[1].text, (unsigned char *)request.ifr_hwaddr.sa_data);
	if (ioctl(sock, SIOCSIFHWADDR, &request) != 0)
		error = errno;
	request.ifr_mtu = atoi(fields[4].text);
	if (ioctl(sock, SIOCSIFMTU, &request) != 0)
		error = errno;
	if (*fields[2].text != '\0' &&
	    (set_address(sock, &request, SIOCSIFADDR, inet_addr(fields[2].text)) != 0 ||
	     set_address(sock, &request, SIOCSIFNETMASK, htonl(prefix == 0 ? 0 : ~0u << (32 - prefix))) != 0))
		error = errno;
	request.ifr_flags = IFF_UP | IFF_RUNNING;
	if (ioctl(sock, SIOCSIFFLAGS, &request) != 0)
		error = errno;
	if (*fields[5].text != '\0') {
		struct rtentry there = {0}, all = {0};
		struct arpreq neighbour = {.arp_flags = ATF_PERM | ATF_COM};
		struct sockaddr_in gateway = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(fields[5].text)};

		/* It answers no question for its hardware address. */
		memcpy(&neighbour.arp_pa, &gateway, sizeof gateway);
		neighbour.arp_ha.sa_family = ARPHRD_ETHER;
		hardware_address(fields[6].text, (unsigned char *)neighbour.arp_ha.sa_data);
		strncpy(neighbour.arp_dev, request.ifr_name, sizeof neighbour.arp_dev - 1);
		memcpy(&there.rt_dst, &gateway, sizeof gateway);
		there.rt_genmask.sa_family = all.rt_dst.sa_family = all.rt_genmask.sa_family = AF_INET;
		((struct sockaddr_in *)&there.rt_genmask)->sin_addr.s_addr = ~0u;
		there.rt_flags = RTF_UP | RTF_HOST;
		memcpy(&all.rt_gateway, &gateway, sizeof gateway);
		all.rt_flags = RTF_UP | RTF_GATEWAY;
		there.rt_dev = all.rt_dev = request.ifr_name;
		if (ioctl(sock, SIOCADDRT, &there) != 0 && errno != EEXIST)
			error = errno;
		if (ioctl(sock, SIOCSARP, &neighbour) != 0 || (ioctl(sock, SIOCADDRT, &all) != 0 && errno != EEXIST))
			error = errno;
	}
	close(sock);
	return error;
}

static void bring_up_loopback(void)
{
	struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
	int sock = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	ioctl(sock, SIOCSIFFLAGS, &request);
	close(sock);
}

static void set(const char *path, const char *value)
{
	int file = open(path, O_WRONLY | O_CLOEXEC);

	if (file < 0 || write(file, value, strlen(value)) < 0)
		complain(path);
	close(file);
}

/* Becomes the kernel's user; in a child only. */
static void become_user(void)
{
	struct rlimit nothing = {0, 0}, tasks = {processes, processes}, files = {OPEN_FILES, OPEN_FILES};
	int descriptor = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
	sigset_t none;

	(void)!write(descriptor, "0", 1);
	close(descriptor);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	setsid();
	setrlimit(RLIMIT_CORE, &nothing);
	setrlimit(RLIMIT_NPROC, &tasks);
	setrlimit(RLIMIT_NOFILE, &files);
	/* As in containers: programs that change their user do not. */
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || setgroups(group_count, groups) != 0 ||
	    setresgid(group, group, group) != 0 || setresuid(user, user, user) != 0)
		_exit(126);
	if (chdir(HOME) != 0)
		_exit(126);
	environ = variables;
	name_account();
}

static void run(char **words, int to, const char *from)
{
	int nothing = open("/dev/null", O_RDWR | O_CLOEXEC), descriptor, error;
	char why[512];

	dup2(nothing, STDIN_FILENO);
	dup2(to < 0 ? nothing : to, STDOUT_FILENO);
	dup2(to < 0 ? nothing : to, STDERR_FILENO);
	become_user();
	if (enter(from) != 0) {
		fprintf(stderr, "guest: %s: %s\n", from, strerror(errno));
		_exit(NO_DIRECTORY);
	}
	if (words[0] == NULL) {
		/* Nothing is to be run: until a signal, and without the ports, which can be open once only. */
		for (descriptor = STDERR_FILENO + 1; descriptor < MAX_DESCRIPTORS; descriptor++)
			close(descriptor);
		for (;;)
			pause();
	}
	error = become_program(words, why, sizeof why);
	fprintf(stderr, "guest: %s: %s\n", words[0], why);
	_exit(error == ENOENT ? 127 : 126);
}

/* Takes what the command prints. A thread: the agent must be answered while nothing takes the output. */
static void *take_output(void *unused)
{
	static char piece[65536];
	ssize_t count;

	while ((count = read(printed[0], piece, sizeof piece)) > 0 || (count < 0 && errno == EINTR)) {
		ssize_t at = 0, done;

		while (count > 0 && at < count) {
			done = write(output, piece + at, (size_t)(count - at));
			if (done > 0)
				at += done;
			else if (errno != EINTR)
				usleep(10000);
		}
	}
	drained = 1;
	kill(getpid(), SIGCHLD);
	return unused;
}

/*
 * A machine finds the time of its start to the second only. Nothing of the user's runs yet
 * that could see the clock change.
 */
static void set_clock(const char *text)
{
	long long seconds;
	struct timespec now;

	if (sscanf(text, "%lld %ld", &seconds, &now.tv_nsec) != 2)
		return;
	now.tv_sec = (time_t)seconds;
	if (clock_settime(CLOCK_REALTIME, &now) != 0)
		complain("clock");
}

static int go(struct field *fields, int count)
{
	pthread_t thread;

	if (command != 0 || !assembled)
		return assembled ? 0 : EAGAIN;
	if (pipe2(printed, O_CLOEXEC) != 0)
		return errno;
	if (count == 1)
		set_clock(fields[0].text);
	/* Its own: /dev/stdout can be opened. */
	(void)!fchown(printed[1], user, group);
	command = fork();
	if (command == 0)
		run(arguments, printed[1], directory);
	if (command < 0)
		return errno;
	close(printed[1]);
	if (pthread_create(&thread, NULL, take_output, NULL) != 0)
		give_up("cannot take the output");
	return 0;
}

static int serve(void)
{
	if (server != 0 || server_count == 0 || !assembled)
		return 0;
	server = fork();
	if (server == 0)
		run(server_arguments, -1, ".");
	return 0;
}

/*
 * Sends what is left to send. A port takes nothing before the guest knows that its other end is open,
 * which it may learn after a question.
 */
static void send_unsent(void)
{
	ssize_t count = unsent_length > 0 ? write(control, unsent, unsent_length) : 0;

	if (count > 0) {
		unsent_length -= (size_t)count;
		memmove(unsent, unsent + count, unsent_length);
	}
}

static void send_frame(unsigned char kind, const void *data, uint32_t length)
{
	unsigned char bytes[64] = {kind, 0, 0, (unsigned char)(length >> 8), (unsigned char)length};

	memcpy(bytes + HEADER, data, length);
	if (unsent_length + HEADER + length > sizeof unsent)
		/* No agent takes answers: it has been away for many of them. */
		unsent_length = 0;
	memcpy(unsent + unsent_length, bytes, HEADER + length);
	unsent_length += HEADER + length;
	send_unsent();
}

static void answer(unsigned char *body, int error)
{
	unsigned char data[8] = {body[0], body[1], body[2], body[3], 0, 0, (unsigned char)(error >> 8), (unsigned char)error};

	send_frame('A', data, sizeof data);
}

static void take_frame(unsigned char kind, unsigned char *body, size_t length)
{
	static struct field fields[MAX_FIELDS];
	unsigned char saved[4];
	int error = EPROTO;

	if (length < 4)
		return;
	memcpy(saved, body, 4);
	if (kind == 'S') {
		error = specify(body, length);
	} else if (kind == 'N') {
		error = join_network(fields, split(body, length, fields));
	} else if (kind == 'V') {
		error = serve();
	} else if (kind == 'G') {
		error = go(fields, split(body, length, fields));
	} else if (kind == 'K' && length == 5) {
		error = 0;
		if (command > 0 && exit_code < 0) {
			asked |= is_to_end(body[4]);
			pass_on(command, body[4]);
		}
	}
	answer(saved, error);
}

/* Reads what there is; frames that make no sense are dropped with all that is there. */
static void read_control(void)
{
	for (;;) {
		size_t length = frame_length >= HEADER ? number(frame + 1) : 0;
		size_t wanted = frame_length < HEADER ? HEADER - frame_length : HEADER + length - frame_length;
		ssize_t count;

		if (length > LARGEST) {
			frame_length = 0;
			return;
		}
		if (wanted > 0) {
			count = read(control, frame + frame_length, wanted);
			if (count == 0)
				/* The other end is closed: the rest of a frame does not come any more. */
				frame_length = 0;
			if (count <= 0)
				return;
			frame_length += (size_t)count;
		}
		if (frame_length >= HEADER && frame_length == HEADER + (size_t)number(frame + 1)) {
			frame_length = 0;
			take_frame(frame[0], frame + HEADER, number(frame + 1));
		}
	}
}

/* ---- streams ---- */

static void open_stream(struct stream *stream)
{
	stream->port = open(stream->path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	stream->greeted = 0;
	watch(stream->port, (uint32_t)(stream - streams));
}

/* Reads the greeting of a caller; once it is whole, repeats it and passes the port on. */
static void greet(struct stream *stream)
{
	ssize_t count;

	if (stream->attach != 0)
		return;
	if (stream->port < 0)
		/* A child had it open for a moment more. */
		open_stream(stream);
	while (stream->greeted < GREETING) {
		count = read(stream->port, stream->greeting + stream->greeted, GREETING - stream->greeted);
		if (count == 0)
			stream->greeted = 0;
		if (count <= 0)
			return;
		stream->greeted += (size_t)count;
		if (stream->greeting[0] != 'R') {
			/* What a former caller left. */
			close(stream->port);
			open_stream(stream);
			return;
		}
	}
	if (!assembled)
		return;
	stream->attach = fork();
	if (stream->attach == 0) {
		if (write(stream->port, stream->greeting, GREETING) != GREETING)
			_exit(126);
		dup2(stream->port, STDIN_FILENO);
		dup2(stream->port, STDOUT_FILENO);
		become_user();
		execl(OWN "/attach", "attach", (char *)NULL);
		_exit(127);
	}
}

/* ---- the end ---- */

/* Most lines that tell of it before the end. */
#define KILLED_LINES 1000

/* Returns the number of processes that were killed as memory was used up. */
static long killed_for_memory(void)
{
	FILE *file = fopen("/proc/vmstat", "re");
	char line[100];
	long kills = 0;

	while (file != NULL && fgets(line, sizeof line, file) != NULL)
		if (sscanf(line, "oom_kill %ld", &kills) == 1)
			break;
	if (file != NULL)
		fclose(file);
	return kills;
}

/* Tells of what was killed since the last time. */
static void tell_of_killed(void)
{
	static long told = 0, lines = 0;
	long kills = killed_for_memory();
	char line[64];

	if (kills <= told || lines >= KILLED_LINES)
		return;
	told = kills;
	lines++;
	snprintf(line, sizeof line, "killed %ld\n", kills);
	(void)!write(status, line, strlen(line));
}

/* Ends all that is left, has the output taken to its end, writes how the command ended, and powers off. */
static void end(int code)
{
	char line[64];
	int tries;

	for (tries = 0; !drained && tries < TRIES; tries++) {
		kill(-1, SIGKILL);
		while (waitpid(-1, NULL, WNOHANG) > 0)
			continue;
		usleep(1000);
	}
	snprintf(line, sizeof line, "exit %d %ld\n", code, killed_for_memory());
	(void)!write(status, line, strlen(line));
	power_off();
}

static void reap(void)
{
	int state, at;
	pid_t pid;

	while ((pid = waitpid(-1, &state, WNOHANG)) > 0) {
		if (pid == command)
			exit_code = WIFSIGNALED(state) ? 128 + WTERMSIG(state) : WEXITSTATUS(state);
		for (at = 0; at < STREAMS; at++)
			if (pid == streams[at].attach) {
				streams[at].attach = 0;
				/* What came for the former caller is dropped with it. */
				close(streams[at].port);
				open_stream(&streams[at]);
			}
	}
	/* What the command has left may not be done yet, if it was asked to end. */
	if (exit_code >= 0 && (!asked || signal_processes(command, 0, 0) == 0))
		end(exit_code);
}

int main(void)
{
	struct signalfd_siginfo information;
	char name[32];
	sigset_t all;
	int signals, at;

	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	umask(022);
	mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
	mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
	mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, NULL);
	at = open("/dev/console", O_RDWR | O_CLOEXEC);
	dup2(at, STDIN_FILENO);
	dup2(at, STDOUT_FILENO);
	dup2(at, STDERR_FILENO);
	at = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
	(void)!write(at, "-1000", 5);
	close(at);
	load_modules();
	if (is_probe()) {
		fprintf(stderr, "guest: booted\n");
		power_off();
	}
	bring_up_loopback();
	/* As in containers: every user may listen on any port, and send echo requests. */
	set("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
	set("/proc/sys/net/ipv4/ping_group_range", "0 2147483647");
	signals = signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK);
	control = find_needed("retinue.control");
	status = find_needed("retinue.status");
	output = find_needed("retinue.output");
	fcntl(control, F_SETFL, O_NONBLOCK);
	events = epoll_create1(EPOLL_CLOEXEC);
	watch(signals, STREAMS);
	watch(control, STREAMS);
	for (at = 0; at < STREAMS; at++) {
		snprintf(name, sizeof name, "retinue.stream.%d", at);
		streams[at].port = find_port(name, streams[at].path);
		if (streams[at].port < 0)
			give_up(name);
		fcntl(streams[at].port, F_SETFL, O_NONBLOCK);
		watch(streams[at].port, (uint32_t)at);
	}
	send_frame('B', "1", 1);
	for (;;) {
		struct epoll_event happened[STREAMS];
		int count = epoll_wait(events, happened, STREAMS, unsent_length > 0 ? RESEND_MS : LOOK_MS);

		while (read(signals, &information, sizeof information) == sizeof information)
			continue;
		reap();
		tell_of_killed();
		send_unsent();
		read_control();
		for (at = 0; at < (count > 0 ? count : 0); at++)
			if (happened[at].data.u32 < STREAMS)
				greet(&streams[happened[at].data.u32]);
		for (at = 0; count == 0 && at < STREAMS; at++)
			greet(&streams[at]);
	}
}
