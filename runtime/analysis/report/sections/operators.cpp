// What the time on CPUs and GPUs went into, operator by operator.
#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "report/sections.h"
#include "text/numbers.h"

namespace dtrain::analysis::report {
namespace {

constexpr std::size_t kMostOperators = 40;

std::string color_of(OperatorKind kind) {
  switch (kind) {
    case OperatorKind::kContraction:
      return "compute";
    case OperatorKind::kNormalisation:
      return "data";
    case OperatorKind::kElementWise:
      return "validation";
    case OperatorKind::kOther:
      break;
  }
  return "other";
}

void write_device(Page& page, const DeviceOperators& device, const std::string& name, const std::string& id) {
  if (device.rows.empty()) return;
  page.heading(fmt::format("Operators on {}", name));
  const OperatorRow& first = device.rows.front();
  page.paragraph(
      fmt::format("The most expensive is {} with {} of the self time.", first.name, format_percent(first.share)));
  Json labels = Json::array(), seconds = Json::array(), colors = Json::array();
  for (const OperatorKindRow& kind : device.kinds) {
    labels.push_back(analysis::name_of(kind.kind));
    seconds.push_back(rounded(kind.seconds));
    colors.push_back(color_of(kind.kind));
  }
  page.chart(
      {.id = id,
       .title = "Classes of operators on " + name,
       .text =
           "Contractions (matrix products, convolutions, attention) compute most for each byte they move, element-wise "
           "operators least.",
       .spec = {{"kind", "shares"},
                {"labels", labels},
                {"y", {{"unit", "s"}}},
                {"sets", {{{"name", "self time"}, {"y", seconds}, {"colors", colors}}}}},
       .height = 220});
  Table table(
      fmt::format("Operators on {} by self time: without the operators they called, so that shares sum to 100%", name),
      {{"operator"}, {"class"}, {"share", true}, {"self time", true}, {"with what it called", true}, {"calls", true}});
  double rest_s = 0, rest_share = 0;
  for (std::size_t i = 0; i < device.rows.size(); ++i) {
    const OperatorRow& row = device.rows[i];
    if (i >= kMostOperators) {
      rest_s += row.self_s;
      rest_share += row.share;
      continue;
    }
    table.row({row.name, std::string(analysis::name_of(row.kind)),
               Cell(format_percent(row.share), row.share, row.share).colored(color_of(row.kind)),
               Cell(seconds_text(row.self_s), row.self_s), Cell(seconds_text(row.total_s), row.total_s),
               Cell(count_text(row.calls), static_cast<double>(row.calls))});
  }
  if (rest_s > 0) {
    table.row({fmt::format("{} more", device.rows.size() - kMostOperators), "",
               Cell(format_percent(rest_share), rest_share), Cell(seconds_text(rest_s), rest_s)});
  }
  page.table(table);
}

void write_devices(Page& page, const Operators& operators) {
  const double sum_s = operators.cpu.seconds + operators.gpu.seconds;
  page.paragraph(fmt::format("From traces of {} batches of {} rank{}: {} of the operators' time on CPUs, {} on GPUs.",
                             count_text(operators.batches), operators.ranks.size(),
                             operators.ranks.size() == 1 ? "" : "s",
                             format_percent(sum_s > 0 ? operators.cpu.seconds / sum_s : 0),
                             format_percent(sum_s > 0 ? operators.gpu.seconds / sum_s : 0)));
  page.chart({.id = "cpu-gpu",
              .title = "CPU and GPU operators",
              .text = "Their self time.",
              .spec = {{"kind", "shares"},
                       {"labels", {"CPU operators", "GPU operators"}},
                       {"y", {{"unit", "s"}}},
                       {"sets",
                        {{{"name", "self time"},
                          {"y", {rounded(operators.cpu.seconds), rounded(operators.gpu.seconds)}},
                          {"colors", {"compute", "gpu"}}}}}},
              .height = 200});
  write_device(page, operators.cpu, "CPUs", "cpu-classes");
  write_device(page, operators.gpu, "GPUs", "gpu-classes");
}

}  // namespace

void write_operators(Page& page, const Input& input) {
  page.begin_section("operators", "Operators");
  const Operators& operators = input.analysis.operators;
  if (operators.cpu.rows.empty() && operators.gpu.rows.empty()) {
    page.absent(
        "No operators.", "No trace was taken in this run.",
        "Ask for one: profiling: {trace: {begin_on_batch: 20, end_after_batch: 30}} in the experiment file, or 'dtrain "
        "trace --now RUN' while it runs.");
  } else {
    write_devices(page, operators);
    if (operators.gpu.rows.empty())
      page.absent("No GPU operators.", "The traces have none: the ranks computed on CPUs.", "");
  }
  page.list(operators.notes);
}

}  // namespace dtrain::analysis::report
