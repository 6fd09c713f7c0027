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

// In half of its steps rank 1 computes for 8 ms longer, since other programs use its core, and exchanges take 2 ms
// longer.
inline test::SyntheticRun run_with_a_rank_without_a_core() {
  test::SyntheticRun plan;
  plan.steps = 1'000;
  plan.change = [](int rank, std::int64_t batch, test::SyntheticStep& step) {
    if (batch % 200 < 100) return;
    if (rank == 1) phase(step, profile::Phase::kBackward) += 8 * kMs;
    step.exchange_ns += 2 * kMs;
  };
  plan.foreign_percent = [](int rank) { return rank == 1 ? 35.0 : 1.0; };
  // Of loops of 15.8 s: 4 s while computing, 1 s in exchanges.
  plan.cpu_wait_percent = [](int rank) { return rank == 1 ? 100 * 5 / 15.8 : 0.0; };
  return plan;
}

inline std::string findings_text(const Analysis& analysis) {
  std::string text;
  for (const Finding& finding : analysis.findings) text += to_json(finding).dump() + "\n";
  return text;
}

}  // namespace dtrain::analysis
