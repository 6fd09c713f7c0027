// How busy the GPUs were.
#include "report/rule_text.h"
#include "report/sections.h"
#include "report/system_charts.h"

namespace dtrain::analysis::report {

void write_gpu_utilization(Page& page, const Input& input) {
  page.begin_section("gpu-utilization", "GPU utilization");
  write_rule(page, input, "LowGPUUtilization");
  Json spec = gpu_series(input, "gpu_util", "utilization", "percent");
  if (spec.is_null()) {
    page.absent(
        "No GPU figures.", "No agent saw a GPU: the machines have none, or NVIDIA's driver does not answer there.",
        "How busy the CPUs were is under System usage and CPU bottlenecks; 'dtrain doctor' shows which GPUs it finds.");
    return;
  }
  page.chart({.id = "gpu-series",
              .title = "Utilization of each GPU",
              .text = "The share of time in which a kernel ran. Low throughout: too little work, or something it waits "
                      "for. Up and "
                      "down: blocking calls, or waiting for data.",
              .spec = std::move(spec)});
  if (Json hot = gpu_series(input, "gpu_temperature", "temperature", "C"); !hot.is_null()) {
    page.chart({.id = "gpu-temperature",
                .title = "Temperature of each GPU",
                .text = "Near its limit a GPU slows down by itself.",
                .spec = std::move(hot),
                .height = 180});
  }
}

}  // namespace dtrain::analysis::report
