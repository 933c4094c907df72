#include "t.h"
const struct body thread_bodies[] = {{0}};
