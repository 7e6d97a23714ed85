// Prints the arguments and the environment of every process that it sees, a line each, and then a last line. A test runs it in a pod of a node, into which a
// ConfigMap brings it: in C it fits into one.
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *what) {
	printf("%s: %s\n", what, strerror(errno));
	exit(1);
}

// show prints a file of a process on one line. A process may end while it is looked at.
static void show(const char *pid, const char *file) {
	char path[300];
	snprintf(path, sizeof path, "/proc/%s/%s", pid, file);
	FILE *f = fopen(path, "r");
	if (f == NULL) {
		if (errno == ENOENT || errno == ESRCH) return;
		fail(path);
	}
	printf("%s: ", path);
	for (int c; (c = getc(f)) != EOF;) putchar(c == 0 || c == '\n' || c == '\r' ? ' ' : c);
	if (ferror(f) && errno != ESRCH) fail(path);
	putchar('\n');
	fclose(f);
}

int main(void) {
	DIR *proc = opendir("/proc");
	if (proc == NULL) fail("/proc");
	for (struct dirent *entry; (entry = readdir(proc)) != NULL;) {
		if (!isdigit((unsigned char)entry->d_name[0])) continue;
		show(entry->d_name, "cmdline");
		show(entry->d_name, "environ");
	}
	puts("all processes were read");
	return 0;
}
