#include "dtrain/analysis/summary.h"

#include <algorithm>
#include <set>
#include <span>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/text.h"
#include "read/text.h"
#include "summary/summary_words.h"

namespace dtrain::analysis {
namespace {

constexpr double kSmallestShare = 0.0005;     // smaller ones are in the JSON
constexpr std::size_t kCheckpointsShown = 5;  // the last ones; all are in the JSON

std::string or_dash(const std::optional<double>& seconds) {
  return seconds ? seconds_text(*seconds) : "-";
}

void write_head(TextWriter& out, const RunSummary& s) {
  std::set<std::string> hosts;
  for (const RankSummary& rank : s.ranks) hosts.insert(rank.host);
  const auto host_count = static_cast<std::int64_t>(std::max<std::size_t>(1, hosts.size()));
  std::string state = s.state.empty() ? "not ended" : s.state;
  state = out.styled(s.state == "done" ? "32" : "31", state);
  const std::string batch = batch_size_text(s);
  out.line("{}  {}  {} on {}{}", out.styled("1", s.name), state, count_text(s.world_size, "rank"),
           count_text(host_count, "host"), batch.empty() ? "" : ", global batch " + batch);
  if (!s.mock.empty()) out.line("  {}", out.styled("33", s.mock));
  if (const std::string missing = missing_ranks_text(s); !missing.empty()) {
    out.line("  {}", out.styled("33", missing));
  }
  if (!s.cause.empty()) out.line("  cause: {}", s.cause);
  if (const std::string attempt = attempt_text(s); !attempt.empty()) out.line("  {}", attempt);
  if (const std::string useful = useful_time_text(s); !useful.empty()) out.line("  useful time: {}", useful);
  out.line("  initialization {}   loop {}   finalization {}", or_dash(s.initialization_s), or_dash(s.loop_s),
           or_dash(s.finalization_s));
  if (s.steps > 0) {
    out.line("  {} samples/s over the loop, {} while training   {}; a batch: p50 {}, p99 {}",
             format_rate(s.samples_per_s), format_rate(s.training_samples_per_s), batches_text(s),
             seconds_text(s.step_p50_s), seconds_text(s.step_p99_s));
  }
  if (s.compute) out.paragraph(compute_text(s));
  if (!s.cuda_graphs.empty()) out.line("  {}", s.cuda_graphs);
  if (!s.validation.empty()) {
    std::string text;
    for (const auto& [name, value] : s.validation)
      text += fmt::format("{}{} {:.4g}", text.empty() ? "" : ", ", name, value);
    out.line("  validation after batch {}: {}", s.validation_batch, text);
  }
  if (s.loss_scaling) out.line("  {}", s.loss_scaling->text);
  if (s.non_finite) out.line("  {}", out.styled("31", s.non_finite->text));
}

void write_phase(TextWriter& out, const std::string& name, double share, double seconds, const std::string& quantiles) {
  const std::string row =
      fmt::format("  {:<24}{:>7}{:>12}{:>24}  ", name, format_percent(share), seconds_text(seconds), quantiles);
  out.line("{}{}", row, out.bar(share, static_cast<int>(row.size())));
}

std::string quantiles_of(const PhaseSummary& phase) {
  return fmt::format("{:>12}{:>12}", seconds_text(phase.p50_s), seconds_text(phase.p99_s));
}

void write_phases(TextWriter& out, const RunSummary& s) {
  if (s.steps == 0) return;
  // Shares here are of the loop, so that the time between steps shows as well.
  const double loop_s = std::max(s.loop_s.value_or(0), s.in_steps_s);
  if (loop_s <= 0) return;
  const bool alone = s.ranks.size() == 1;
  const char* const whose = !s.times_of_gpus ? "" : alone ? " GPU's" : " GPUs'";
  std::vector<std::string> of;
  if (const std::string attempt = attempt_name(s); !attempt.empty()) of.push_back("of " + attempt);
  if (!alone) of.push_back(fmt::format("mean of {} ranks", s.ranks.size()));
  out.heading(fmt::format("Where the{} time went{}", whose, of.empty() ? "" : " (" + join(of, ", ") + ")"));
  out.line("  {:<24}{:>7}{:>12}{:>12}{:>12}", "", "share", "total", "p50", "p99");
  std::vector<PhaseSummary> top;
  std::vector<PhaseSummary> parts;
  for (const PhaseSummary& phase : s.phases) (phase.name.find('.') == std::string::npos ? top : parts).push_back(phase);
  PhaseSummary between;
  between.name = "between batches";
  between.seconds = loop_s - s.in_steps_s;
  top.push_back(between);
  const auto dearer = [](const PhaseSummary& a, const PhaseSummary& b) { return a.seconds > b.seconds; };
  std::stable_sort(top.begin(), top.end(), dearer);
  std::stable_sort(parts.begin(), parts.end(), dearer);
  for (const PhaseSummary& phase : top) {
    if (phase.seconds < kSmallestShare * loop_s) continue;
    write_phase(out, phase.name, phase.seconds / loop_s, phase.seconds,
                phase.name == between.name ? "" : quantiles_of(phase));
    for (const PhaseSummary& part : parts) {
      if (!part.name.starts_with(phase.name + ".") || part.seconds < kSmallestShare * loop_s) continue;
      write_phase(out, "  " + part.name.substr(phase.name.size()), part.seconds / loop_s, part.seconds,
                  quantiles_of(part));
    }
  }
}

void write_ranks(TextWriter& out, const RunSummary& s) {
  if (s.ranks.empty() || s.steps == 0) return;
  out.heading("Ranks (times a batch)");
  out.line("  {:>4}  {:>10}{:>11}{:>11}{:>11}{:>11}{:>12}   {}", "rank", "samples/s", "computing", "optimizer", "data",
           "exposed", "memory", s.ranks.size() > 1 ? "came last in" : "");
  for (const RankSummary& rank : s.ranks) {
    const double steps = static_cast<double>(std::max<std::int64_t>(1, rank.steps));
    std::string last;
    if (s.compared_steps > 0) {
      last = fmt::format("{} of {} exchanges, others waited {}", count_text(rank.waited_for_steps),
                         count_text(s.compared_steps), seconds_text(rank.waited_for_s));
    }
    out.line("  {:>4}  {:>10}{:>11}{:>11}{:>11}{:>11}{:>12}   {}", rank.rank, format_rate(rank.samples_per_s),
             seconds_text(rank.compute_s / steps), seconds_text(rank.optimizer_s / steps),
             seconds_text(rank.data_s / steps), seconds_text(rank.exposed_s / steps),
             rank.peak_resident_bytes > 0 ? format_bytes(rank.peak_resident_bytes) : "-", last);
  }
}

void write_gpu_memory(TextWriter& out, const RunSummary& s) {
  const bool any = std::any_of(s.ranks.begin(), s.ranks.end(), [](const auto& rank) { return rank.gpu_memory; });
  if (!any) return;
  out.heading("GPU memory of the ranks");
  out.line("  {:>4}  {:>16}{:>12}   {}", "rank", "tensors at most", "reserved", "the most was in");
  for (const RankSummary& rank : s.ranks) {
    if (!rank.gpu_memory) continue;
    out.line("  {:>4}  {:>16}{:>12}   {}", rank.rank, format_bytes(rank.gpu_memory->peak_bytes),
             format_bytes(rank.gpu_memory->reserved_bytes), rank.gpu_memory->peak_phase);
  }
}

void write_communication(TextWriter& out, const RunSummary& s) {
  if (s.world_size < 2 || s.steps == 0) return;
  out.heading("Communication");
  out.paragraph(exposed_text(s));
  if (s.strategy && !s.strategy->text.empty()) out.paragraph(s.strategy->text);
  if (s.compression && !s.compression->text.empty()) out.paragraph(s.compression->text);
  if (s.collectives.empty()) return;
  out.line("  {:<24}{:>8}{:>12}{:>12}{:>12}{:>16}", "operation", "count", "bytes each", "p50", "waited for",
           "bus bandwidth");
  for (const CollectiveSummary& c : s.collectives) {
    const std::string name = c.bucket < 0 ? c.operation : fmt::format("{} bucket {}", c.operation, c.bucket);
    const double each = static_cast<double>(c.bytes) / static_cast<double>(std::max<std::int64_t>(1, c.count));
    out.line("  {:<24}{:>8}{:>12}{:>12}{:>12}{:>16}", name, count_text(c.count), format_bytes(each),
             seconds_text(c.seconds_p50), seconds_text(c.exposed_s),
             c.bus_bandwidth_p50 > 0 ? format_bytes(c.bus_bandwidth_p50) + "/s" : "-");
  }
  out.paragraph(collectives_text(s));
}

// Writes the number of damaged samples that loaders have replaced, if there are any.
void write_skipped(TextWriter& out, const RunSummary& s) {
  std::int64_t skipped = 0, most = 0;
  int worst = 0;
  for (const RankSummary& rank : s.ranks) {
    skipped += rank.loader_usage.skipped;
    if (rank.loader_usage.skipped <= most) continue;
    most = rank.loader_usage.skipped;
    worst = rank.rank;
  }
  if (skipped == 0) return;
  out.paragraph(
      fmt::format("{} left out and replaced by neighbours (data.on_error: skip), most of them by rank {}: {}. "
                  "The ranks' logs name the first ones.",
                  count_text(skipped, "damaged sample"), worst, count_text(most)));
}

void write_history(TextWriter& out, const RunSummary& s) {
  const RunHistory& history = s.history;
  if (history.attempts.size() > 1) {
    out.heading("Attempts");
    out.line("  {:>7}  {:<20}{:>12}  {:<24} {}", "attempt", "batches", "ran for", "recovered", "why it ended");
    for (const AttemptAccount& attempt : history.attempts) {
      out.line("  {:>7}  {:<20}{:>12}  {:<24} {}", attempt.attempt, batches_text(attempt),
               attempt.ended_s ? seconds_text(*attempt.ended_s - attempt.started_s) : "-", recovery_text(attempt),
               end_text(attempt));
    }
  }
  if (history.checkpoints.empty() && history.troubles.empty()) return;
  out.heading("Checkpoints");
  out.paragraph(checkpoints_text(s));
  for (const SaveTrouble& trouble : history.troubles) out.paragraph(text_of(trouble));
  if (history.checkpoints.empty()) return;
  out.line("  {:>10}  {:<12}{:<10}{:>12}{:>12}{:>12}{:>12}", "batch", "reason", "", "size", "copied in", "waited",
           "written in");
  const auto first = history.checkpoints.size() - std::min(history.checkpoints.size(), kCheckpointsShown);
  for (const CheckpointAccount& checkpoint : std::span(history.checkpoints).subspan(first)) {
    out.line("  {:>10}  {:<12}{:<10}{:>12}{:>12}{:>12}{:>12}", count_text(checkpoint.step), checkpoint.reason,
             word_of(checkpoint.fate), format_bytes(static_cast<double>(checkpoint.bytes)),
             seconds_text(checkpoint.copy_s), seconds_text(checkpoint.wait_s), seconds_text(checkpoint.write_s));
  }
}

std::string with_unit(double value, const std::string& unit) {
  if (unit == "bytes") return format_bytes(value);
  if (unit == "bytes/s") return format_bytes(value) + "/s";
  if (unit == "percent") return fmt::format("{:.1f}%", value);
  if (unit == "celsius") return fmt::format("{:.0f} C", value);
  return fmt::format("{:.1f}", value);
}

void write_metrics(TextWriter& out, const std::vector<MetricSummary>& metrics, const std::string& indent) {
  for (const MetricSummary& m : metrics) {
    const std::string label = indent + (m.unit == "requests/s" ? m.name + " (/s)" : m.name);
    out.line("  {:<24}{:>15}{:>15}{:>15}{:>15}", label, with_unit(m.mean, m.unit), with_unit(m.p50, m.unit),
             with_unit(m.p95, m.unit), with_unit(m.max, m.unit));
  }
}

void write_monitors(TextWriter& out, const RunSummary& s) {
  for (const MonitorSummary& monitor : s.monitors) {
    if (monitor.metrics.empty()) continue;
    out.heading(fmt::format("Host {}{} ({})", monitor.host.empty() ? monitor.agent : monitor.host,
                            monitor.host.empty() || monitor.agent == monitor.host ? "" : ", agent " + monitor.agent,
                            count_text(monitor.samples, "sample")));
    out.line("  {:<24}{:>15}{:>15}{:>15}{:>15}", "", "mean", "p50", "p95", "max");
    write_metrics(out, monitor.metrics, "");
    for (const GpuSummary& gpu : monitor.gpus) {
      std::string known = gpu.name;
      if (gpu.total_memory_bytes > 0) {
        known += (known.empty() ? "" : ", ") + format_bytes(static_cast<double>(gpu.total_memory_bytes));
      }
      const std::string owner = gpu.rank        ? fmt::format(", rank {}", *gpu.rank)
                                : gpu.is_of_run ? ""
                                                : ", not used by this run";
      out.line("  GPU {}{}{}", gpu.index, known.empty() ? "" : " (" + known + ")", owner);
      write_metrics(out, gpu.metrics, "  ");
    }
  }
}

}  // namespace

std::string render_summary(const RunSummary& summary, const TextOptions& options) {
  TextWriter out(options);
  write_head(out, summary);
  write_phases(out, summary);
  write_scopes(out, summary);
  write_ranks(out, summary);
  write_skipped(out, summary);
  write_gpu_memory(out, summary);
  write_communication(out, summary);
  write_history(out, summary);
  write_monitors(out, summary);
  if (!summary.warnings.empty()) {
    out.heading("Warnings");
    for (const std::string& warning : summary.warnings) out.line("  {} {}", out.styled("33", "!"), warning);
  }
  out.line("");
  out.line("{} {}", out.styled("1", "Look at:"), summary.look_at);
  return out.take();
}

}  // namespace dtrain::analysis
