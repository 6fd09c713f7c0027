// libtorch's header of ProcessGroupGloo, for which declarations/ names what it needs of gloo.
#pragma once

#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
