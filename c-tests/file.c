#include "t.h"
const struct body file_bodies[] = {{0}};
