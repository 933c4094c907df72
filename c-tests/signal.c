#include "t.h"
const struct body signal_bodies[] = {{0}};
