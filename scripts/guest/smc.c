/* cc -shared -fPIC: preloaded, makes every TCP socket of a program one of AF_SMC, which speaks SMC with its like and TCP with
 * all others. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

#ifndef AF_SMC
#define AF_SMC 43
#endif

int socket(int domain, int type, int protocol)
{
	int (*real)(int, int, int) = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
	int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);

	if ((domain == AF_INET || domain == AF_INET6) && kind == SOCK_STREAM && (protocol == 0 || protocol == IPPROTO_TCP))
		return real(AF_SMC, type, domain == AF_INET6);
	return real(domain, type, protocol);
}
