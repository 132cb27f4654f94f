/*
 * Prints how system calls that kernels must not have are answered: a name and an error number each, 0 when it was done.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPACE (64l << 20)
#define NEW_USER 0x10000000
#define IO_URING_SETUP 425
#define CLONE3 435
#define PUNCH_HOLE 3
/* Of XFS, which other file systems have as well; the second is that of i386. */
#define RESERVE 0x40305828
#define RESERVE_COMPATIBLE 0x402c5828

static void tell(const char *name, long result)
{
	printf("%s %d\n", name, result < 0 ? errno : 0);
}

#ifdef __x86_64__
/* Calls Linux as 32-bit programs do. */
static long compatible(long number, long first, long second, long third, long fourth, long fifth)
{
	long result;

	__asm__ volatile("int $0x80"
			 : "=a"(result)
			 : "a"(number), "b"(first), "c"(second), "d"(third), "S"(fourth), "D"(fifth)
			 : "memory", "r8", "r9", "r10", "r11");
	errno = (int)-result;
	return result;
}
#endif

#ifdef __x86_64__
static const unsigned int socket_of_i386[3] = {AF_UNIX, SOCK_STREAM, 0};
#endif

int main(int count, char **arguments)
{
	char reservation[48] = {0};
	struct stat found;
	int file;

	if (count < 2 || (file = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0600)) < 0)
		return 1;
	/* Where the length is in the structure. */
	reservation[18] = 1;
	tell("fallocate", syscall(SYS_fallocate, file, 0, 0l, SPACE));
	tell("fallocate_keep", syscall(SYS_fallocate, file, 1, 0l, SPACE));
	tell("fallocate_zero", syscall(SYS_fallocate, file, 0x10, 0l, SPACE));
	tell("reserve", ioctl(file, RESERVE, reservation));
	tell("reserve_compatible", ioctl(file, RESERVE_COMPATIBLE, reservation));
#ifdef __x86_64__
	tell("fallocate_32", compatible(324, file, 0, 0, 0, SPACE));
	tell("keyctl_32", compatible(288, 0, -4, 1, 0, 0));
	tell("io_uring_32", compatible(IO_URING_SETUP, 8, 0, 0, 0, 0));
	/* Static programs have what they point to below 4 GiB. */
	tell("socketcall_32", compatible(102, 1, (long)socket_of_i386, 0, 0, 0));
#endif
	printf("taken %d\n", fstat(file, &found) != 0 || found.st_blocks > 0);
	tell("punch", syscall(SYS_fallocate, file, PUNCH_HOLE, 0l, 4096l));
	errno = posix_fallocate(file, 0, 8192);
	tell("posix_fallocate", errno == 0 ? 0 : -1);
	printf("written %d\n", fstat(file, &found) != 0 || found.st_size != 8192);
	tell("keyctl", syscall(SYS_keyctl, 0, -4, 1));
	tell("add_key", syscall(SYS_add_key, 0, 0, 0, 0, 0));
	tell("io_uring", syscall(IO_URING_SETUP, 8, 0));
	tell("clone3", syscall(CLONE3, 0, 0));
	tell("unshare", unshare(NEW_USER));
	tell("bpf", syscall(SYS_bpf, 0, 0, 0));
	tell("vsock", socket(40, SOCK_STREAM, 0));
	tell("alg", socket(38, SOCK_SEQPACKET, 0));
	tell("unix", socket(AF_UNIX, SOCK_STREAM, 0));
	tell("inet", socket(AF_INET6, SOCK_STREAM, 0));
	tell("netlink", socket(AF_NETLINK, SOCK_RAW, 0));
	puts("over");
	return 0;
}
