#include "t.h"
const struct body option_bodies[] = {{0}};
