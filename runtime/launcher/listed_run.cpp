#include "dtrain/launcher/listed_run.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <optional>

namespace dtrain::launcher {
namespace {

namespace fs = std::filesystem;

// Returns the seconds since the run's files were last written to.
double quiet_s(const rank::RunFolder& folder) {
  std::error_code code;
  auto latest = fs::file_time_type::min();
  const auto look_at = [&](const fs::path& path) {
    const auto time = fs::last_write_time(path, code);
    if (!code) latest = std::max(latest, time);
  };
  look_at(folder.events());
  look_at(folder.metrics());
  for (const auto& entry : fs::directory_iterator(folder.profile(), code)) look_at(entry.path());
  if (latest == fs::file_time_type::min()) return std::numeric_limits<double>::infinity();
  return std::chrono::duration<double>(fs::file_time_type::clock::now() - latest).count();
}

}  // namespace

bool is_gone(const rank::RunFolder& folder) {
  return rank::is_over(folder) && quiet_s(folder) > kQuietS;
}

analysis::ListedRun list_run(const rank::RunFolder& folder, const Clock& clock) {
  return analysis::read_listed_run(folder.path,
                                   is_gone(folder) ? std::nullopt : std::optional(to_seconds(clock.wall())));
}

}  // namespace dtrain::launcher
