/* Starts a program under glibc 2.28 and later. Before 2.34 a function of the program's own start
 * file ran its constructors: the file handed it to __libc_start_main. A newer start file hands
 * none. A newer glibc calls the function, too, and leaves the constructors to it. */
typedef int main_function(int, char **, char **);
typedef void hook(int, char **, char **);

extern hook *const __preinit_array_start[] __attribute__((visibility("hidden")));
extern hook *const __preinit_array_end[] __attribute__((visibility("hidden")));
extern hook *const __init_array_start[] __attribute__((visibility("hidden")));
extern hook *const __init_array_end[] __attribute__((visibility("hidden")));
extern void _init(void) __attribute__((visibility("hidden")));

extern int old_start(main_function *, int, char **, hook *, void (*)(void), void (*)(void), void *);
__asm__(".symver old_start, __libc_start_main@GLIBC_2.2.5");

static void constructors(int argc, char **argv, char **environment)
{
    for (hook *const *each = __preinit_array_start; each != __preinit_array_end; each++)
        (*each)(argc, argv, environment);
    _init();
    for (hook *const *each = __init_array_start; each != __init_array_end; each++)
        (*each)(argc, argv, environment);
}

__attribute__((visibility("hidden"))) int
__libc_start_main(main_function *program, int argc, char **argv, hook *init, void (*fini)(void),
                  void (*loader_fini)(void), void *stack)
{
    (void)init;
    return old_start(program, argc, argv, constructors, fini, loader_fini, stack);
}
