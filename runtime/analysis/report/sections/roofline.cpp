// The section on the amount of computing, and on the distance of operators from the hardware's limits.
#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "report/sections.h"
#include "summary/summary_words.h"
#include "text/numbers.h"

namespace dtrain::analysis::report {
namespace {

constexpr std::size_t kMostRows = 25;

std::string shapes_text(const std::vector<std::vector<std::int64_t>>& shapes) {
  std::string text;
  for (const auto& shape : shapes) {
    std::string sizes;
    for (const std::int64_t size : shape) sizes += (sizes.empty() ? "" : "x") + std::to_string(size);
    text += (text.empty() ? "" : " ") + (sizes.empty() ? "scalar" : sizes);
  }
  return text;
}

std::string rate_text(const std::optional<double>& value, const std::string& unit) {
  return value ? amount_text(*value * 1e9, unit) : "not known";
}

void write_compute_facts(Page& page, const ComputeAccount& account) {
  page.facts({{"FLOPs of a batch", amount_text(account.flops_per_step, "FLOP")},
              {"achieved", amount_text(account.achieved_gflops * 1e9, "FLOP/s")},
              {"limit (products of matrices, " + account.dtype + ")", rate_text(account.limit_gflops, "FLOP/s")},
              {"MFU", account.mfu ? format_percent(*account.mfu) : "not known"},
              {"moved by operators without FLOPs", rate_text(account.achieved_gb_s, "B/s")},
              {"limit of the memory", rate_text(account.limit_gb_s, "B/s")}});
  if (!account.mfu) page.absent("No MFU.", account.without_mfu + ".", "");
}

std::vector<Cell> limit_row(const OperatorLimit& one, double all_s) {
  const double share = all_s > 0 ? one.seconds / all_s : 0;
  std::vector<Cell> row{one.name,
                        one.dtype + (one.format.empty() ? "" : ", " + one.format),
                        shapes_text(one.shapes),
                        Cell(count_text(one.calls), static_cast<double>(one.calls)),
                        Cell(format_percent(share), share, share).colored("compute"),
                        Cell(seconds_text(one.seconds), one.seconds)};
  if (one.ideal_s) {
    const double ratio = *one.ideal_s > 0 ? one.seconds / *one.ideal_s : 0;
    row.emplace_back(seconds_text(*one.ideal_s), *one.ideal_s);
    row.emplace_back(ratio > 0 ? fmt::format("{:.1f}x", ratio) : "-", ratio);
    row.emplace_back(one.by_memory ? "memory" : one.flops > 0 ? "computing" : "-");
  } else {
    row.insert(row.end(), {"", "", ""});
  }
  const double per_s = one.seconds > 0 ? 1 / one.seconds : 0;
  const double flops = static_cast<double>(one.flops) * per_s, bytes = static_cast<double>(one.bytes) * per_s;
  row.push_back(one.flops > 0 ? Cell(amount_text(flops, "FLOP/s"), flops) : Cell("", 0));
  row.emplace_back(amount_text(bytes, "B/s"), bytes);
  return row;
}

void write_operators_table(Page& page, const Roofline& roofline) {
  Table table(
      fmt::format(
          "Operators of forward and backward in batch {} on rank {} ({} samples), those first that take longest "
          "beyond their ideal",
          count_text(roofline.batch), roofline.rank, count_text(roofline.samples)),
      {{"operator"},
       {"type"},
       {"shapes", false, "of its tensors; where it makes no FLOPs, those of its largest call"},
       {"calls", true},
       {"share", true},
       {"measured", true, "with what the operator called"},
       {"ideal", true, "the longer of FLOPs at the machine's rate and bytes at its memory's rate"},
       {"ratio", true, "measured over ideal"},
       {"limited by", false, "which of the two takes longer"},
       {"computes", true},
       {"moves", true}});
  const double all_s = roofline.seconds();
  for (std::size_t i = 0; i < std::min(kMostRows, roofline.operators.size()); ++i) {
    table.row(limit_row(roofline.operators[i], all_s));
  }
  page.table(table);
}

}  // namespace

void write_roofline(Page& page, const Input& input) {
  page.begin_section("roofline", "Computing and the hardware's limit");
  if (std::string graphs = input.analysis.summary.cuda_graphs; !graphs.empty()) {
    graphs[0] = 'S';
    page.paragraph(graphs + ".");
  }
  const auto& account = input.analysis.summary.compute;
  if (!account) {
    page.absent("No count of FLOPs.", "The run trained fewer than two batches, or was a mock run that trains nothing.",
                "");
    return;
  }
  write_compute_facts(page, *account);
  const Roofline& roofline = input.analysis.roofline;
  if (roofline.operators.empty()) {
    page.absent("No times of operators.",
                roofline.device == "cpu" ? "The rank ended before it wrote them."
                                         : "GPUs finish operators after the host has gone on.",
                "A trace has those of GPUs: 'dtrain trace --now RUN' while it runs.");
    return;
  }
  page.paragraph(
      "An operator that is far from its ideal is slow because of its shapes, its memory format, its type, or its "
      "kernel. Operators whose data fits into caches can be faster than memory; their ideal is what was measured.");
  write_operators_table(page, roofline);
}

}  // namespace dtrain::analysis::report
