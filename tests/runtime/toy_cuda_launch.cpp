// The launching function that a generated step library has.
#include "inferc/cuda/driver_launch.h"
