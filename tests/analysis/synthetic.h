// A synthetic run, written, read and analysed.
#pragma once

#include "dtrain/analysis/analysis.h"
#include "harness/synthetic_run.h"
#include "run_folder.h"

namespace dtrain::analysis {

class Synthetic {
 public:
  explicit Synthetic(const test::SyntheticRun& run)
      : truth(test::write_synthetic_run(folder.path(), run)),
        profile(load_run(folder.path())),
        analysis(analyze(profile)) {}

  RunFolder folder;
  test::SyntheticTruth truth;
  RunProfile profile;
  Analysis analysis;

  // The finding of this id; null: there is none.
  const Finding* finding(const std::string& id) const {
    for (const Finding& one : analysis.findings) {
      if (one.id == id) return &one;
    }
    return nullptr;
  }
  double worst_fault_share() const {
    double worst = 0;
    for (const Finding& one : analysis.findings) {
      if (one.fault) worst = std::max(worst, one.bytes_per_step ? 1.0 : one.share);
    }
    return worst;
  }
};

inline constexpr std::int64_t kMs = 1'000'000;

inline std::int64_t& phase(test::SyntheticStep& step, profile::Phase which) {
  return step.own_ns[static_cast<std::size_t>(which)];
}

}  // namespace dtrain::analysis
