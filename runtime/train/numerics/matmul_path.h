// Chooses the path of the MKL in libtorch for float32 matrix products. By default MKL takes its path for AVX2 and
// AVX-512 only on Intel's processors, and on others a path that is about half as fast; its vector functions and FFTs
// differ likewise. MKL calls its function mkl_serv_intel_cpu_true once, at its first use in a process. libdtrain_train
// defines a function of that name, which the dynamic linker takes instead if the library comes before libtorch. If
// libtorch is loaded first, as in Python, the table by which libtorch finds the function is changed.
#pragma once

#include <string>

#include "dtrain/config/optimizations.h"
#include "dtrain/profile/rank_limits.h"

namespace dtrain::train {

struct MatmulChoice {
  profile::MatmulPath path = profile::MatmulPath::kDefault;
  std::string reason;   // for the log: "optimizations.matmul: default"
  std::string warning;  // why the requested fast path cannot be taken; empty: no warning
};

// Chooses the path for the life of this process. kAuto: the fast path on processors of AMD with AVX2 and FMA. The
// choice depends on the processor alone, so that a repeated run gives the same bits. Called before libtorch computes
// anything; the fast path, once chosen, stays. Main thread.
MatmulChoice choose_matmul(config::Matmul wanted);

// Watches for MKL's question, in a process in which libtorch may compute before choose_matmul(). Called as soon as
// libtorch is loaded.
void watch_matmul();

// True if kAuto takes another path here than MKL's default. Any thread.
bool has_fast_matmul();

}  // namespace dtrain::train
