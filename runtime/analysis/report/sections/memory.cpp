// Memory: of GPUs, and of the ranks' processes.
#include <spdlog/fmt/fmt.h>

#include "report/rule_text.h"
#include "report/sections.h"
#include "report/system_charts.h"

namespace dtrain::analysis::report {

void write_memory(Page& page, const Input& input) {
  page.begin_section("memory", "Memory");
  page.heading("GPU memory");
  write_rule(page, input, "GPUMemoryIncrease");
  if (Json spec = gpu_series(input, "gpu_free_memory", "memory taken", "percent", true); !spec.is_null()) {
    page.chart({.id = "gpu-memory",
                .title = "Memory taken on each GPU",
                .text = "By all processes together, as percent of what the GPU has.",
                .spec = std::move(spec)});
  } else {
    page.absent("No GPU memory.", "No agent saw a GPU.", "");
  }
  page.heading("Memory of the ranks");
  write_rule(page, input, "HostMemoryFull");
  Json ranks = rank_memory_series(input);
  if (ranks.is_null()) {
    page.absent("No memory of ranks.", "No sample was taken while a rank ran.", "A run of a second or more has some.");
    return;
  }
  page.chart({.id = "rank-memory",
              .title = "Resident memory of each rank",
              .text = fmt::format("Memory that ranks share counts for each of them. One that keeps rising is a leak.{}",
                                  input.drawn_text()),
              .spec = std::move(ranks)});
}

}  // namespace dtrain::analysis::report
