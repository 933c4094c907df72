// New images: the exec family with few and many arguments, from fork and from vfork, posix_spawn,
// system, popen, daemon, and the calls that fail.
#include "common.h"

static const char *self;
extern char **environ;

#define IN_CHILD(forks, ...)                                                                       \
    do {                                                                                           \
        fflush(stdout);                                                                            \
        pid_t pid_ = forks();                                                                      \
        if (pid_ == 0) {                                                                           \
            __VA_ARGS__;                                                                           \
            _exit(errno);                                                                          \
        }                                                                                          \
        int status_;                                                                               \
        waitpid(pid_, &status_, 0);                                                                \
        printf("%s in %s: %d %d\n", #__VA_ARGS__, #forks, WIFEXITED(status_), WEXITSTATUS(status_));            \
    } while (0)

#define ALL(...)                                                                                   \
    IN_CHILD(fork, __VA_ARGS__);                                                                   \
    IN_CHILD(vfork, __VA_ARGS__)

// Says nothing before the child has said all: the two share the output.
#define SPAWNED(call)                                                                              \
    do {                                                                                           \
        int ret_ = (call);                                                                         \
        waitpid(pid, &status, 0);                                                                  \
        printf("%s = %d, spawned: %d\n", #call, ret_, WEXITSTATUS(status));                        \
        fflush(stdout);                                                                            \
    } while (0)

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "show") == 0) {
        for (int i = 2; i < argc; i++)
            printf("[%s]", argv[i]);
        printf(" %d, MARK=%s\n", argc, getenv("MARK") ? getenv("MARK") : "none");
        return argc;
    }
    // Without arguments in a child of this program: execl(exe, exe, NULL) has come here.
    if (getenv("EXEC_CHILD")) {
        printf("no arguments, %d\n", argc);
        return 9;
    }
    setenv("EXEC_CHILD", "1", 1);
    self = "/proc/self/exe";
    char exe[PATH_MAX] = "";
    if (readlink(self, exe, sizeof exe - 1) < 0)
        DIE("readlink");
    // Preloaded or not, the new image's environment is the same but for the mark.
    char preload[PATH_MAX + 32], *pre = getenv("LD_PRELOAD");
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", pre ? pre : "");
    char *env[] = {"MARK=set", preload, NULL};
    char *const vector[] = {exe, "show", "v1", "v2", NULL};

    ALL(execl(exe, exe, NULL));
    ALL(execl("/nonexistent", "x", NULL));
    ALL(execl(exe, exe, "show", NULL));
    ALL(execl(exe, exe, "show", "1", "2", "3", NULL));
    ALL(execl(exe, exe, "show", "1", "2", "3", "4", NULL));
    ALL(execl(exe, exe, "show", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13",
              "14", "15", "16", "17", "18", "19", "20", NULL));
    ALL(execlp("sh", "sh", "-c", "echo \"$@\"", "_", "a", "b", "c", "d", "e", "f", "g", NULL));
    ALL(execlp("no-such-program", "x", "y", NULL));
    ALL(execle(exe, exe, "show", NULL, env));
    ALL(execle(exe, exe, "show", "1", "2", "3", "4", "5", "6", "7", "8", NULL, env));
    ALL(execle("/nonexistent", "x", NULL, env));
    ALL(execv(exe, vector));
    ALL(execve(exe, vector, env));
    ALL(execvp("true", vector));
    ALL(execvpe(exe, vector, env));
    ALL(execve("/nonexistent", vector, env));
    ALL(execve("/tmp", vector, env));
    int fd = open(exe, O_RDONLY | O_CLOEXEC);
    ALL(fexecve(fd, vector, env));
    ALL(execveat(fd, "", vector, env, AT_EMPTY_PATH));
    ALL(execveat(AT_FDCWD, "/nonexistent", vector, env, 0));
    ALL(syscall(SYS_execve, exe, vector, env));

    // A failed exec leaves the process as it was.
    SHOW(execl("/nonexistent", "x", NULL));

    // A vfork child uses hooks in this process's memory.
    int p[2];
    if (pipe(p))
        DIE("pipe");
    for (volatile int i = 0; i < 100; i++) {
        pid_t pid = vfork();
        if (pid == 0) {
            close(p[0]);
            dup2(p[1], 77);
            if (write(77, "x", 1) != 1)
                _exit(1);
            close(77);
            fcntl(p[1], F_SETFD, FD_CLOEXEC);
            _exit(0);
        }
        int status;
        char c = 0;
        waitpid(pid, &status, 0);
        if (status || read(p[0], &c, 1) != 1 || c != 'x' || fcntl(77, F_GETFD) != -1)
            printf("vfork child %d failed\n", i);
    }

    pid_t pid;
    int status;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    SHOW(posix_spawn_file_actions_adddup2(&actions, 1, 50));
    SHOW(posix_spawn_file_actions_adddup2(&actions, -1, 50));
    SPAWNED(posix_spawn(&pid, exe, &actions, NULL, vector, env));
    char *const words[] = {"sh", "-c", "echo spawned by path; exit 3", NULL};
    SPAWNED(posix_spawnp(&pid, "sh", NULL, NULL, words, environ));
    SHOW(posix_spawn(&pid, "/nonexistent", NULL, NULL, words, environ));
    // A script without a first line: only the version before 2.15 would run it.
    int script = open("/tmp/sluice-script", O_CREAT | O_TRUNC | O_WRONLY, 0755);
    if (script < 0 || write(script, "exit 5\n", 7) != 7)
        DIE("script");
    close(script);
    char *const run[] = {"/tmp/sluice-script", NULL};
    SHOW(posix_spawn(&pid, run[0], NULL, NULL, run, environ));
    unlink(run[0]);

    fflush(stdout);
    SHOW(system("echo by system; exit 4"));
    SHOW(system(NULL) != 0);
    FILE *f = popen("echo by popen; cat >/dev/null", "r");
    char line[64] = "";
    if (!f || !fgets(line, sizeof line, f))
        DIE("popen");
    fputs(line, stdout);
    SHOW(pclose(f));
    f = popen("cat", "w");
    fputs("to popen\n", f);
    SHOW(pclose(f));

    fflush(stdout);
    if (pipe(p))
        DIE("pipe");
    if (fork() == 0) {
        SHOW(daemon(1, 1));
        _exit(write(p[1], "d", 1) != 1);
    }
    char c = 0;
    SHOW(read(p[0], &c, 1));
    SHOW(wait(&status) > 0);
    printf("%c %d\n", c, status);

    IN_CHILD(_Fork, (void)0);
    return 0;
}
