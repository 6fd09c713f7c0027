// libtorch's header of ProcessGroupGloo; declarations/ has the parts of gloo that it needs.
#pragma once

#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
