// The module that a rank opens where no launcher has started it, or its experiment sets a rule
// (dtrain/rank/launcher_duties.h).
#include "dtrain/rank/launcher_duties.h"

#include "dtrain/launcher/summary_text.h"
#include "dtrain/launcher/user_ledger.h"
#include "gpu_limits.h"
#include "launch/run_texts.h"
#include "machine_limits.h"
#include "plan/launch_plan.h"

namespace dtrain::launcher {
namespace {

std::optional<profile::RankLimits> known_limits(int threads, int ranks, const rank::Variables& variables) {
  return machine_limits({.threads = threads, .ranks = ranks}, Measure::kNever, variables).limits;
}

std::vector<profile::GpuLimits> known_gpu_limits(const std::vector<std::string>& gpus,
                                                 const rank::Variables& variables) {
  return gpu_limits(gpus, Measure::kNever, {}, variables).limits;
}

}  // namespace
}  // namespace dtrain::launcher

extern "C" dtrain::rank::LauncherDuties dtrain_launcher_duties() {
  using namespace dtrain::launcher;
  return {.end_report = end_report,
          .summary_text = summary_text,
          .run_of_task = run_of_task,
          .known_limits = known_limits,
          .known_gpu_limits = known_gpu_limits,
          .unused_rules_warning = unused_rules_warning};
}
