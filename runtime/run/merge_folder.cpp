#include "merge_folder.h"

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;

// Not a rename: the two may lie on different file systems by then.
void move_file(const fs::path& from, const fs::path& to) {
  make_folder(to.parent_path());
  fs::copy_file(from, to, fs::copy_options::overwrite_existing);
  fs::remove(from);
}

void merge_plan(const fs::path& from, const fs::path& to) {
  Json plan = read_json(to);
  const Json theirs = read_json(from);
  for (const auto& [key, value] : theirs.items()) plan[key] = value;
  write_file_atomic(to, plan.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace

void merge_folder(const RunFolder& from, const RunFolder& to) {
  if (fs::exists(from.events())) {
    std::string lines = read_file(from.events());
    if (!lines.empty() && lines.back() != '\n') lines.erase(lines.rfind('\n') + 1);  // torn
    if (!lines.empty()) LineAppender(to.events()).append(lines);
    fs::remove(from.events());
  }
  // Only rank 0 writes metrics, and changes the plan.
  if (fs::exists(from.metrics()) && fs::exists(from.plan())) merge_plan(from.plan(), to.plan());
  fs::remove(from.plan());
  fs::remove(from.experiment());
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(from.path)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  for (const fs::path& file : files) move_file(file, to.path / fs::relative(file, from.path));
}

}  // namespace dtrain::run
