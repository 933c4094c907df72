/* The functions of before 2.29, which also set errno as SVID wanted it. */
double old_log(double x);
double old_pow(double x, double y);
double old_log2(double x);
double old_exp2(double x);
__asm__(".symver old_log, log@GLIBC_2.2.5");
__asm__(".symver old_pow, pow@GLIBC_2.2.5");
__asm__(".symver old_log2, log2@GLIBC_2.2.5");
__asm__(".symver old_exp2, exp2@GLIBC_2.2.5");

__attribute__((visibility("hidden"))) double log(double x)
{
    return old_log(x);
}

__attribute__((visibility("hidden"))) double pow(double x, double y)
{
    return old_pow(x, y);
}

__attribute__((visibility("hidden"))) double log2(double x)
{
    return old_log2(x);
}

__attribute__((visibility("hidden"))) double exp2(double x)
{
    return old_exp2(x);
}
