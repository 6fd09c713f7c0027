#include "dtrain/analysis/report.h"

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "report/input.h"
#include "report/page.h"
#include "report/sections.h"
#include "summary/summary_words.h"
#include "text/numbers.h"

namespace dtrain::analysis {
namespace {

std::string rank_choice(const report::Input& input) {
  if (input.drawn().size() < 2) return {};
  std::string options = "<option value=\"\">all ranks</option>";
  for (const RankProfile* rank : input.drawn()) {
    options += fmt::format("<option value=\"{0}\">rank {0}</option>", rank->rank);
  }
  return fmt::format("<label>Show <select id=\"rank\">{}</select></label>", options);
}

std::string header(const report::Input& input) {
  const RunSummary& s = input.analysis.summary;
  const std::string state = s.state.empty() ? "not ended" : s.state;
  std::string about = count_of(s.world_size, "rank") + ", " + extent_text(s);
  if (s.loop_s) about += ", loop " + seconds_text(*s.loop_s);
  if (!s.mock.empty()) about += "; " + s.mock;
  return fmt::format(
      "<h1>{}</h1><span class=\"state {}\">{}</span><span class=\"about\">{}</span>"
      "<div class=\"controls\">{}<button type=\"button\" id=\"theme\">Theme: auto</button></div>",
      html_escaped(s.name), html_escaped(state), html_escaped(state), html_escaped(about), rank_choice(input));
}

}  // namespace

std::string render_report(const RunProfile& run, const Analysis& analysis) {
  const report::Input input(run, analysis);
  report::Page page;
  for (const auto write : {report::write_verdict,        report::write_job,
                           report::write_learning,       report::write_checkpoints,
                           report::write_waterfall,      report::write_roofline,
                           report::write_timeline,       report::write_stragglers,
                           report::write_collectives,    report::write_what_if,
                           report::write_system,         report::write_framework,
                           report::write_operators,      report::write_rules,
                           report::write_steps,          report::write_gpu_utilization,
                           report::write_balance,        report::write_data_loading,
                           report::write_batch_size,     report::write_cpu_bottlenecks,
                           report::write_io_bottlenecks, report::write_memory,
                           report::write_completeness}) {
    write(page, input);
  }
  return page.html("dtrain report: " + analysis.summary.name, header(input), to_json(analysis));
}

void write_report(const std::filesystem::path& folder, const std::filesystem::path& file) {
  const RunProfile run = load_run(folder);
  write_file_atomic(file, render_report(run, analyze(run)));
}

}  // namespace dtrain::analysis
