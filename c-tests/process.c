#include "t.h"
const struct body process_bodies[] = {{0}};
