// GPUs of this machine on which other processes compute. Pure function; any thread.
#pragma once

#include <set>
#include <string>

#include <sys/types.h>

#include "dtrain/host/gpu_setup.h"

namespace dtrain::run {

struct GpuUse {
  std::string warning;  // others use it, too; empty: nobody does
  std::string refusal;  // a rank cannot use it; empty: it can
  std::string remedy;   // for the refusal
};

// `gpu`: its name in texts. `own`: processes that belong to the run.
GpuUse use_of_gpu(const host::GpuSetup& setup, const std::string& gpu, const std::set<pid_t>& own);

}  // namespace dtrain::run
