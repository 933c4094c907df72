#include "t.h"
const struct body epoll_bodies[] = {{0}};
