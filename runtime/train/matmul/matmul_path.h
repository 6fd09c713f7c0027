// Which path the MKL inside libtorch takes for float32 matrix products. By itself it takes the one for processors with
// AVX2 and AVX-512 only on Intel's, and on others one that is about half as fast; MKL's vector functions and FFTs
// differ likewise. MKL asks its function mkl_serv_intel_cpu_true once, at its first use in a process. libdtrain_train
// defines a function of that name, which the dynamic linker takes instead where the library comes before libtorch.
// Where libtorch is loaded first, as in Python, this changes the table by which libtorch finds the function.
#pragma once

#include <string>

#include "dtrain/config/optimizations.h"
#include "dtrain/profile/rank_limits.h"

namespace dtrain::train {

struct MatmulChoice {
  profile::MatmulPath path = profile::MatmulPath::kDefault;
  std::string reason;   // for the log: "optimizations.matmul: default"
  std::string warning;  // why the fast path that was asked for cannot be taken; empty: nothing is wrong
};

// Chooses the path for the life of this process. kAuto: the fast one on processors of AMD with AVX2 and FMA. The choice
// depends on the processor alone, so that a run that is repeated gives the same bits. To be called before libtorch
// computes anything; the first call that chooses the fast path holds. The main thread.
MatmulChoice choose_matmul(config::Matmul wanted);

// The first half of that, for a process in which libtorch may compute before it is known what is chosen: what MKL asks
// from now on is noticed. As soon as libtorch is loaded.
void watch_matmul();

// Whether kAuto takes another path here than libtorch by itself. Any thread.
bool has_fast_matmul();

}  // namespace dtrain::train
