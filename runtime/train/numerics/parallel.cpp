// This file is compiled with -fopenmp and linked without an OpenMP library: libtorch_cpu brings the library of its
// threads.
#include "numerics/parallel.h"

#include <ATen/Parallel.h>

#if !AT_PARALLEL_OPENMP || !defined(_OPENMP)
#error "without OpenMP at::parallel_for() is a serial loop"
#endif

namespace dtrain::train {

void parallel_for(std::int64_t count, std::int64_t least,
                  const std::function<void(std::int64_t begin, std::int64_t end)>& work) {
  at::parallel_for(0, count, least, work);
}

}  // namespace dtrain::train
