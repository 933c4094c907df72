/* A busy loop on the CPU it was started on, until it is killed or its parent is gone. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(void)
{
	volatile unsigned long n = 0;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() == 1)
		return 1;
	for (;;)
		n++;
}
