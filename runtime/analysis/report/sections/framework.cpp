// The sections on computing: the time in training, evaluation and everything else, the phases of a step, operators, and
// their distance from the hardware's limits.
#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/text.h"
#include "read/text.h"
#include "report/sections.h"
#include "summary/summary_words.h"

namespace dtrain::analysis::report {
namespace {

struct Modes {
  double train_s = 0, eval_s = 0, between_s = 0, others_s = 0;
  double sum() const { return train_s + eval_s + between_s + others_s; }
};

double phase_seconds(const RunSummary& summary, const std::string& name) {
  for (const PhaseSummary& phase : summary.phases) {
    if (phase.name == name) return phase.seconds;
  }
  return 0;
}

Modes modes_of(const RunSummary& s) {
  Modes modes;
  modes.eval_s = phase_seconds(s, "validation");
  modes.others_s = phase_seconds(s, "checkpoint") + phase_seconds(s, "callbacks");
  modes.train_s = std::max(0.0, s.in_steps_s - modes.eval_s - modes.others_s);
  modes.between_s = std::max(0.0, s.loop_s.value_or(s.in_steps_s) - s.in_steps_s);
  return modes;
}

std::string phase_color(const std::string& phase) {
  for (const PhaseGroup& group : phase_groups()) {
    for (const profile::Phase member : group.phases) {
      if (profile::name_of(member) == phase) return group.color;
    }
  }
  return "other";
}

void write_modes(Page& page, const RunSummary& s) {
  const Modes modes = modes_of(s);
  const double sum = std::max(modes.sum(), 1e-12);
  page.chart({.id = "train-eval",
              .title = "TRAIN, EVAL and others",
              .text = fmt::format("TRAIN {}, EVAL {}, between batches {}, checkpoints and callbacks {} of the loop.",
                                  format_percent(modes.train_s / sum), format_percent(modes.eval_s / sum),
                                  format_percent(modes.between_s / sum), format_percent(modes.others_s / sum)),
              .spec = shares_chart(
                  {"TRAIN", "EVAL", "between batches", "checkpoints and callbacks"}, "seconds",
                  {rounded(modes.train_s), rounded(modes.eval_s), rounded(modes.between_s), rounded(modes.others_s)},
                  {"compute", "validation", "other", "checkpoint"}),
              .height = 230});
}

void write_ring(Page& page, const RunSummary& s) {
  Json labels = Json::array(), seconds = Json::array(), colors = Json::array();
  for (const PhaseGroup& group : phase_groups()) {
    double sum = 0;
    for (const profile::Phase phase : group.phases) {
      const std::string name(profile::name_of(phase));
      if (name.find('.') == std::string::npos) sum += phase_seconds(s, name);
    }
    labels.push_back(group.name);
    seconds.push_back(rounded(sum));
    colors.push_back(group.color);
  }
  page.chart({.id = "phase-shares",
              .title = "Phases",
              .text = "The shares of all phases, in groups; the table below has each of them.",
              .spec = shares_chart(labels, "seconds", seconds, colors),
              .height = 230});
}

// Writes a row for each scope; the times of each rank are in the JSON.
void write_scopes(Page& page, const RunSummary& s) {
  if (s.scopes.empty()) return;
  page.heading("Scopes of the trial");
  page.paragraph(fmt::format(
      "The parts that the program times with context.scope(). Their time lies within that of the phases above; a scope "
      "within another one is indented, and is in its figures already.{}",
      s.times_of_gpus ? " These are times of the host: when work was issued, not how long the GPU took." : ""));
  Table table("Scopes (total: mean of the ranks; p50 and p99 over the batches that used it; calls of all ranks)",
              {{"scope"},
               {"total", true},
               {"of the loop", true},
               {"p50", true},
               {"p99", true},
               {"calls", true},
               {"batches", true},
               {"within", false, "the phases in which most of its time lies"},
               {"longest on", true, "the rank on which it took longest, with its total there"}});
  for (const ScopeSummary& scope : s.scopes) {
    std::string indent;
    for (std::size_t i = 0; i < depth_of(scope); ++i) indent += "\u2003";
    table.row(
        {Cell(indent + name_in(scope)).colored(scope.phases.empty() ? "other" : phase_color(scope.phases[0].first)),
         Cell::seconds(scope.seconds), Cell::share(scope.share), Cell::seconds(scope.p50_s), Cell::seconds(scope.p99_s),
         Cell::count(scope.calls), Cell::count(scope.batches), phases_text(scope),
         Cell(fmt::format("rank {}: {}", scope.slowest_rank, seconds_text(scope.slowest_s)), scope.slowest_s)});
  }
  page.table(table);
}

constexpr std::size_t kMostOperators = 40;

std::string color_of(OperatorKind kind) {
  constexpr const char* kColors[] = {"compute", "data", "validation", "other"};
  return kColors[static_cast<std::size_t>(kind)];
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
       .spec = shares_chart(labels, "self time", seconds, colors),
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
    table.row({row.name, std::string(analysis::name_of(row.kind)), Cell::share(row.share).colored(color_of(row.kind)),
               Cell::seconds(row.self_s), Cell::seconds(row.total_s), Cell::count(row.calls)});
  }
  if (rest_s > 0) {
    table.row({fmt::format("{} more", device.rows.size() - kMostOperators), "", Cell::percent(rest_share),
               Cell::seconds(rest_s)});
  }
  page.table(table);
}

void write_devices(Page& page, const Operators& operators) {
  const double sum_s = operators.cpu.seconds + operators.gpu.seconds;
  page.paragraph(fmt::format("From traces of {} batches of {}: {} of the operators' time on CPUs, {} on GPUs.",
                             count_text(operators.batches), count_of(operators.ranks.size(), "rank"),
                             format_percent(sum_s > 0 ? operators.cpu.seconds / sum_s : 0),
                             format_percent(sum_s > 0 ? operators.gpu.seconds / sum_s : 0)));
  page.chart(
      {.id = "cpu-gpu",
       .title = "CPU and GPU operators",
       .text = "Their self time.",
       .spec = shares_chart({"CPU operators", "GPU operators"}, "self time",
                            {rounded(operators.cpu.seconds), rounded(operators.gpu.seconds)}, {"compute", "gpu"}),
       .height = 200});
  write_device(page, operators.cpu, "CPUs", "cpu-classes");
  write_device(page, operators.gpu, "GPUs", "gpu-classes");
}

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
              {"limit (products of matrices, " + account.limit_dtype + ")", rate_text(account.limit_gflops, "FLOP/s")},
              {"MFU", account.mfu ? format_percent(*account.mfu) : "not known"},
              {"moved by operators without FLOPs", rate_text(account.achieved_gb_s, "B/s")},
              {"limit of the memory", rate_text(account.limit_gb_s, "B/s")}});
  if (!account.mfu) page.absent("No MFU.", account.without_mfu + ".");
}

std::vector<Cell> limit_row(const OperatorLimit& operation, double all_s) {
  const double share = all_s > 0 ? operation.seconds / all_s : 0;
  std::vector<Cell> row{operation.name,
                        operation.dtype + (operation.format.empty() ? "" : ", " + operation.format),
                        shapes_text(operation.shapes),
                        Cell::count(operation.calls),
                        Cell::share(share).colored("compute"),
                        Cell::seconds(operation.seconds)};
  if (operation.ideal_s) {
    const double ratio = *operation.ideal_s > 0 ? operation.seconds / *operation.ideal_s : 0;
    row.emplace_back(seconds_text(*operation.ideal_s), *operation.ideal_s);
    row.emplace_back(ratio > 0 ? fmt::format("{:.1f}x", ratio) : "-", ratio);
    row.emplace_back(operation.by_memory ? "memory" : operation.flops > 0 ? "computing" : "-");
  } else {
    row.insert(row.end(), {"", "", ""});
  }
  const double per_s = operation.seconds > 0 ? 1 / operation.seconds : 0;
  const double flops = static_cast<double>(operation.flops) * per_s,
               bytes = static_cast<double>(operation.bytes) * per_s;
  row.push_back(operation.flops > 0 ? Cell(amount_text(flops, "FLOP/s"), flops) : Cell("", 0));
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

// The operators of GPUs, whose times the host does not know.
void write_ideal_table(Page& page, const Roofline& roofline) {
  Table table(fmt::format("Operators of forward and backward in batch {} on rank {} ({} samples), the longest first",
                          count_text(roofline.batch), roofline.rank, count_text(roofline.samples)),
              {{"operator"},
               {"type"},
               {"shapes", false, "of its tensors; where it makes no FLOPs, those of its largest call"},
               {"calls", true},
               {"ideal", true, "the longer of FLOPs at the GPU's rate and bytes at its memory's rate"},
               {"share", true, "of the ideal time of all"},
               {"limited by", false, "which of the two takes longer"}});
  double all_s = 0;
  for (const OperatorLimit& operation : roofline.operators) all_s += operation.ideal_s.value_or(0);
  for (std::size_t i = 0; i < std::min(kMostRows, roofline.operators.size()); ++i) {
    const OperatorLimit& operation = roofline.operators[i];
    if (!operation.ideal_s) continue;
    table.row({operation.name, operation.dtype + (operation.format.empty() ? "" : ", " + operation.format),
               shapes_text(operation.shapes), Cell::count(operation.calls), Cell::seconds(*operation.ideal_s),
               Cell::share(all_s > 0 ? *operation.ideal_s / all_s : 0).colored("compute"),
               operation.by_memory   ? "memory"
               : operation.flops > 0 ? "computing"
                                     : "-"});
  }
  page.table(table);
}

}  // namespace

void write_framework(Page& page, const Input& input) {
  page.begin_section("framework", "Framework metrics");
  const RunSummary& s = input.analysis.summary;
  if (s.steps == 0) return page.absent("No phases.", "No batch was recorded.");
  page.paragraph(
      "Ideally nearly all of the loop is spent in TRAIN and EVAL. Parts of train_batch are indented and are in its "
      "figures already.");
  page.begin_columns();
  write_modes(page, s);
  write_ring(page, s);
  page.end_columns();
  Table table("Phases (total: mean of the ranks; p50 and p99 over all batches of all ranks)",
              {{"phase"}, {"total", true}, {"of the loop", true}, {"p50", true}, {"p99", true}});
  for (const PhaseSummary& phase : s.phases) {
    const bool part = phase.name.find('.') != std::string::npos;
    table.row({Cell((part ? "\u2003" : "") + phase.name).colored(phase_color(phase.name)), Cell::seconds(phase.seconds),
               Cell::share(phase.share), Cell::seconds(phase.p50_s), Cell::seconds(phase.p99_s)});
  }
  page.table(table);
  write_scopes(page, s);
}

// The section on the time of each operator on CPUs and GPUs.

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
      page.absent("No GPU operators.", "The traces have none: the ranks computed on CPUs.");
  }
  page.list(operators.notes);
}

// The section on the amount of computing, and on the distance of operators from the hardware's limits.

void write_roofline(Page& page, const Input& input) {
  page.begin_section("roofline", "Computing and the hardware's limit");
  if (std::string graphs = input.analysis.summary.cuda_graphs; !graphs.empty()) {
    graphs[0] = 'S';
    page.paragraph(graphs + ".");
  }
  const auto& account = input.analysis.summary.compute;
  if (!account) {
    return page.absent("No count of FLOPs.",
                       input.run.is_of_unchanged_script()
                           ? "Operators of an unchanged script are not counted; those of a loop on dtrain's engine are."
                           : "The run trained fewer than two batches, or was a mock run that trains nothing.");
  }
  write_compute_facts(page, *account);
  const Roofline& roofline = input.analysis.roofline;
  if (roofline.operators.empty()) {
    return page.absent("No times of operators.",
                       roofline.device == "cpu" ? "The rank ended before it wrote them."
                                                : "GPUs finish operators after the host has gone on.",
                       "A trace has those of GPUs: 'dtrain trace --now RUN' while it runs.");
  }
  if (!roofline.is_timed()) {
    page.paragraph(
        "GPUs finish operators after the host has gone on, so that only their ideal times are here: what forward and "
        "backward would take if each operator ran at the GPU's limit. A trace has measured times: 'dtrain trace --now "
        "RUN' while the run goes on.");
    return write_ideal_table(page, roofline);
  }
  page.paragraph(
      "An operator that is far from its ideal is slow because of its shapes, its memory format, its type, or its "
      "kernel. Operators whose data fits into caches can be faster than memory; their ideal is what was measured.");
  write_operators_table(page, roofline);
}

}  // namespace dtrain::analysis::report
