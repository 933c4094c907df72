#include "t.h"
const struct body bulk_bodies[] = {{0}};
