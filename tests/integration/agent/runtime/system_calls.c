/*
 * Prints how system calls are answered, those that kernels must not have among them: a name and an error number each,
 * 0 when it was done.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPACE (1l << 20)
#define NEW_USER 0x10000000
#define IO_URING_SETUP 425
#define CLONE3 435
#define PUNCH_HOLE 3

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
	int file;

	if (count < 2 || (file = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0600)) < 0)
		return 1;
	tell("fallocate", syscall(SYS_fallocate, file, 0, 0l, SPACE));
#ifdef __x86_64__
	tell("keyctl_32", compatible(288, 0, -4, 1, 0, 0));
	tell("io_uring_32", compatible(IO_URING_SETUP, 8, 0, 0, 0, 0));
	/* Static programs have what they point to below 4 GiB. */
	tell("socketcall_32", compatible(102, 1, (long)socket_of_i386, 0, 0, 0));
#endif
	tell("punch", syscall(SYS_fallocate, file, PUNCH_HOLE, 0l, 4096l));
	tell("truncate", ftruncate(file, 0));
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
