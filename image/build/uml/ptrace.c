// User-Mode Linux holds the vector registers of what it runs in a buffer of a size that it was compiled with. The machine's kernel takes back nothing but
// the whole of them, which is more on processors with tile registers (AMX): the kernel inside then ends with its first program. Preloaded, this adds what is
// missing, as it is in the process.
// (Linux, arch/x86/kernel/fpu/regset.c, xstateregs_set; User-Mode Linux asks for the size itself from 6.13 on.)
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

long ptrace(enum __ptrace_request request, ...)
{
	static unsigned char registers[1 << 16];
	static long (*next)(enum __ptrace_request, pid_t, void *, void *);
	__builtin_va_list arguments;
	__builtin_va_start(arguments, request);
	pid_t process = __builtin_va_arg(arguments, pid_t);
	void *address = __builtin_va_arg(arguments, void *);
	void *data = __builtin_va_arg(arguments, void *);
	__builtin_va_end(arguments);

	if (request == PTRACE_SETREGSET && address == (void *)NT_X86_XSTATE) {
		struct iovec *part = data, whole = {registers, sizeof registers};
		if (syscall(SYS_ptrace, PTRACE_GETREGSET, process, address, &whole) == 0 && part->iov_len < whole.iov_len) {
			memcpy(registers, part->iov_base, part->iov_len);
			return syscall(SYS_ptrace, PTRACE_SETREGSET, process, address, &whole);
		}
	}
	if (next == NULL)
		next = dlsym(RTLD_NEXT, "ptrace");
	return next(request, process, address, data);
}
