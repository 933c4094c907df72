#include "t.h"
const struct body nonblock_bodies[] = {{0}};
