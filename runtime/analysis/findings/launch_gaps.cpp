// GPUs that are idle because the host launches kernels more slowly than they run, as observed batches show it.
#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/text.h"
#include "findings/judgement.h"
#include "read/text.h"

namespace dtrain::analysis::findings {

std::vector<Finding> find_launch_gaps(const Run& run) {
  const auto& [evidence, analysis, stalls] = run;
  const GpuWindow& window = evidence.gpu_window;
  const double gaps_s = analysis.waterfall.part_s("launch_gaps");
  if (gaps_s <= 0 || window.late_launches == 0) return {};
  const auto launches = static_cast<double>(window.late_launches);
  Finding finding{
      .title = fmt::format("the GPU was idle for {} of the loop because kernels of {} wait for launches of {}",
                           format_percent(gaps_s / evidence.loop_s), seconds_text(window.work_before_s / launches),
                           seconds_text(window.late_launch_s / launches)),
      .evidence =
          fmt::format("{} observed batches: the GPU worked for {} and was idle for {}, of which {} before {} of {} "
                      "kernels and copies, "
                      "whose launches came late (means of these)",
                      count_text(window.batches), seconds_text(window.busy_s), seconds_text(window.idle_s),
                      seconds_text(window.launch_gaps_s), count_text(window.late_launches), count_text(window.works)),
      .advice =
          "a larger batch makes kernels longer (hyperparameters.global_batch_size), and in Python torch.compile() "
          "makes them fewer",
      .seconds = gaps_s};
  const auto& changes = analysis.what_if.changes;
  const auto graphs = std::ranges::find(changes, "cuda_graphs", &Prediction::name);
  if (graphs != changes.end()) {
    finding.patch = {graphs->set};
    finding.advice =
        fmt::format("set {}: predicted {:.2f}x, a batch {} instead of {}; or else: ", keys_text(finding.patch),
                    graphs->gain + 1, seconds_text(graphs->step_s), seconds_text(analysis.what_if.step_s)) +
        finding.advice;
  }
  return {finding};
}

}  // namespace dtrain::analysis::findings
