#include "t.h"
const struct body poll_bodies[] = {{0}};
