#include "launch/run_texts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <system_error>
#include <utility>
#include <vector>

#include <unistd.h>

#include "dtrain/analysis/report.h"
#include "dtrain/analysis/summary.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/launcher/summary_text.h"
#include "dtrain/rank/environment.h"
#include "dtrain/rank/screen.h"

namespace dtrain::launcher {
namespace {

namespace fs = std::filesystem;

// Size of dumps that takes about a second to read and analyse.
constexpr std::uintmax_t kQuickBytes = 100'000'000;

std::uintmax_t dump_bytes(const fs::path& profile) {
  std::uintmax_t sum = 0;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(profile, code)) {
    const std::uintmax_t size = entry.path().extension() == ".jsonl" ? entry.file_size(code) : 0;
    if (!code) sum += size;
  }
  return sum;
}

// Returns the path of the example trial's description, in the source tree or in the installed share/; empty: neither.
std::string example_path() {
  const fs::path bin = executable_path().parent_path();
  std::error_code code;
  for (const char* from : {"../share/dtrain", "../../.."}) {
    const fs::path readme = (bin / from / "examples/fashion_mnist/README.md").lexically_normal();
    if (fs::exists(readme, code)) return rank::shown_path(readme);
  }
  return {};
}

}  // namespace

std::string next_steps(const rank::RunFolder& folder, bool recorded) {
  std::vector<std::string> lines;
  if (recorded) {
    const std::string command = rank::own_command(), run = rank::reference_of(folder);
    lines.push_back(command + " report " + run + "    the same with charts, in one file for a browser");
    lines.push_back(command + " analyze " + run + "   what to change, and what each change would bring");
  }
  if (const std::string example = example_path(); !example.empty()) lines.push_back("your own model: " + example);
  std::string text;
  for (const std::string& line : lines) text += (text.empty() ? "next        " : "            ") + line + "\n";
  return text;
}

std::string first_look_text(const analysis::LiveView& view) {
  using Share = std::pair<double, analysis::Activity>;
  std::array<Share, analysis::kActivityCount> shares;
  for (std::size_t i = 0; i < shares.size(); ++i) shares[i] = {0, static_cast<analysis::Activity>(i)};
  int ranks = 0;
  for (const analysis::LiveRank& rank : view.ranks) {
    if (!rank.recent) continue;
    ++ranks;
    for (std::size_t i = 0; i < shares.size(); ++i) shares[i].first += rank.recent->shares[i];
  }
  if (ranks == 0) return {};
  std::stable_sort(shares.begin(), shares.end(), [](const Share& a, const Share& b) { return a.first > b.first; });
  std::string text = "so far      " + format_rate(view.samples_per_s) + " samples/s;";
  bool first = true;
  for (const auto& [sum, activity] : shares) {
    const auto percent = std::llround(100 * sum / ranks);
    if (percent < 1) continue;
    text += (first ? " " : ", ") + std::string(analysis::name_of(activity)) + " " + std::to_string(percent) + "%";
    first = false;
  }
  return text;
}

std::string first_look(const rank::RunFolder& folder, const Clock& clock) noexcept {
  try {
    analysis::LiveRun run(folder.path, clock);
    run.poll();
    const std::string text = first_look_text(run.view());
    return text.empty() ? text : text + "   (live: " + rank::own_command() + " top " + rank::reference_of(folder) + ")";
  } catch (const std::exception&) {
    return {};
  }
}

rank::EndReport end_report(const fs::path& run_dir) noexcept {
  try {
    const std::uintmax_t bytes = dump_bytes(run_dir / "profile");
    if (bytes == 0) return {};
    if (bytes > kQuickBytes) {
      return {.text = "report      'dtrain report " + run_dir.string() + "' writes it; reading " +
                      format_bytes(static_cast<double>(bytes)) + " of dumps takes a while\n"};
    }
    const fs::path file = run_dir / analysis::kReportFile;
    analysis::write_report(run_dir, file);
    return {.text = "report      " + file.string() + "\n"};
  } catch (const std::exception& error) {
    return {.warning = std::string("dtrain: warning: there is no report of the run: ") + error.what() + "\n"};
  }
}

bool can_redraw(int fd) {
  const rank::Variables variables = rank::process_variables();
  const auto term = variables.find("TERM");
  return ::isatty(fd) != 0 && term != variables.end() && !term->second.empty() && term->second != "dumb";
}

analysis::TextOptions text_options(int fd) {
  analysis::TextOptions options;
  if (const auto width = rank::terminal_width(fd)) {
    options.width = std::clamp(*width, 60, 160);
    options.color = can_redraw(fd) && !rank::process_variables().contains("NO_COLOR");
  }
  return options;
}

std::string summary_text(const std::filesystem::path& run_dir, int fd) {
  return analysis::render_summary(analysis::summarize(run_dir), text_options(fd));
}

}  // namespace dtrain::launcher
