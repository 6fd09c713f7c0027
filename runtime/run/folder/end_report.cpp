#include "folder/end_report.h"

#include <exception>
#include <system_error>

#include "dtrain/analysis/report.h"
#include "dtrain/base/units.h"

namespace dtrain::run {
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

}  // namespace

EndReport end_report(const fs::path& run_dir) noexcept {
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

}  // namespace dtrain::run
