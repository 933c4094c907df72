#include "t.h"
const struct body fd_bodies[] = {{0}};
