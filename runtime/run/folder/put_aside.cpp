#include "folder/put_aside.h"

#include "dtrain/base/file.h"
#include "dtrain/run/log_tail.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;

fs::path folder_aside(const RunFolder& folder, int attempt) {
  return folder.path / ("attempt-" + std::to_string(attempt));
}

}  // namespace

int attempt_number(const RunFolder& folder) {
  int number = 1;
  while (fs::exists(folder_aside(folder, number))) ++number;
  return number;
}

int put_aside(const RunFolder& folder, const Kept& kept) {
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder.logs(), code)) end_torn_line(entry.path());
  const int number = attempt_number(folder);
  const fs::path aside = folder_aside(folder, number);
  make_folder(aside);
  const auto move = [&](const fs::path& one) {
    if (fs::exists(one)) fs::rename(one, aside / one.filename());
  };
  move(folder.logs());
  move(folder.profile());
  if (!kept.metrics) move(folder.metrics());
  make_folder(folder.logs());
  make_folder(folder.profile());
  const fs::path log = aside / folder.launcher_log().lexically_relative(folder.path);
  if (kept.launcher_log && fs::exists(log)) fs::rename(log, folder.launcher_log());
  return number;
}

}  // namespace dtrain::run
