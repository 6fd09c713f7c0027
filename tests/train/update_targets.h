// The instruction sets for which the update kernels are compiled and which this CPU has.
#pragma once

#include <functional>

#include <gtest/gtest.h>

#include <hwy/targets.h>

namespace dtrain::train::kernels {

// Calls `check` once for each; `fma`: whether it has a fused multiply-add.
inline void on_every_target(const std::function<void(bool fma)>& check) {
  const auto compiled = hwy::SupportedTargets() & HWY_TARGETS;
  for (auto left = compiled; left != 0; left &= left - 1) {
    const auto target = left & -left;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
#if HWY_ARCH_X86
    check(target <= HWY_AVX2);
#else
    check(target != HWY_EMU128 && target != HWY_SCALAR);
#endif
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace dtrain::train::kernels
