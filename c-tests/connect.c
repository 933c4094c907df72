#include "t.h"
const struct body connect_bodies[] = {{0}};
