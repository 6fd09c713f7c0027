#include "dtrain/checkpoint/checkpoint.h"

#include <algorithm>
#include <set>
#include <system_error>

#include <sys/stat.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "storage.h"

namespace dtrain::checkpoints {
namespace {

namespace fs = std::filesystem;

// Returns the damage of a file that its size and kind show; empty: none.
std::string size_problem(const fs::path& checkpoint, const ManifestFile& file) {
  struct stat info {};
  return size_problem(file, ::stat((checkpoint / file.name).c_str(), &info) == 0, info);
}

[[noreturn]] void cannot_read(const fs::path& folder, const std::error_code& code) {
  throw SystemError("cannot read the folder " + folder.string(), code.value());
}

struct Found {
  std::int64_t step;
  fs::path path;
};

// Returns the folders in `folder` for whose paths `parse` returns a step, sorted by step.
template <class Parse>
std::vector<Found> find_folders(const fs::path& folder, const Parse& parse) {
  std::vector<Found> found;
  std::error_code code;
  fs::directory_iterator entries(folder, code);
  if (code == std::errc::no_such_file_or_directory) return found;
  if (code) cannot_read(folder, code);
  for (; entries != fs::directory_iterator(); entries.increment(code)) {
    if (const auto step = parse(entries->path())) found.push_back({*step, entries->path()});
    if (code) break;
  }
  if (code) cannot_read(folder, code);
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.step < b.step; });
  return found;
}

// A replaced checkpoint counts only if its replacement is missing.
std::optional<std::int64_t> step_of_checkpoint(const fs::path& path) {
  const std::string name = path.filename();
  const auto replaced = step_of(name, kReplacedPrefix);
  std::error_code code;
  if (replaced && fs::exists(path.parent_path() / step_folder(*replaced), code)) return std::nullopt;
  return step_of_folder(name);
}

// Returns why the checkpoint cannot be used, after reading every byte; empty: it can.
std::string problem_of(const Entry& entry) {
  if (!entry.damage.empty()) return entry.damage;
  const auto problems = verify(entry.path);
  if (problems.size() < 2) return problems.empty() ? "" : problems.front();
  return problems.front() + " (and " + std::to_string(problems.size() - 1) + " more)";
}

// Returns the entries whose metric has the newest metric's name, the best first.
std::vector<const Entry*> by_metric(const std::vector<Entry>& entries) {
  std::vector<const Entry*> sorted;
  const About* newest = nullptr;
  for (const Entry& entry : entries) {
    if (!entry.leads_on() || !entry.about.metric_value) continue;
    sorted.push_back(&entry);
    if (!newest || entry.about.step > newest->step) newest = &entry.about;
  }
  std::erase_if(sorted, [&](const Entry* entry) { return entry->about.metric != newest->metric; });
  std::sort(sorted.begin(), sorted.end(), [&](const Entry* a, const Entry* b) {
    const double x = *a->about.metric_value;
    const double y = *b->about.metric_value;
    if (x != y) return newest->smaller_is_better ? x < y : x > y;
    return a->about.step < b->about.step;
  });
  return sorted;
}

}  // namespace

Entry look_at(const fs::path& checkpoint) {
  Entry entry;
  entry.path = checkpoint;
  if (const auto step = step_of_folder(checkpoint.filename().string())) entry.about.step = *step;
  try {
    const Manifest manifest = read_manifest(checkpoint);
    entry.bytes = total_bytes(manifest.files);
    entry.about = manifest.about;
    entry.not_finite = not_finite_weight(manifest.files);
    for (const ManifestFile& file : manifest.files) {
      if (entry.damage = size_problem(checkpoint, file); !entry.damage.empty()) break;
    }
  } catch (const Error& error) {
    entry.damage = error.what();
  }
  return entry;
}

std::vector<Entry> list(const fs::path& folder) {
  std::vector<Entry> entries;
  for (const Found& found : find_folders(folder, step_of_checkpoint)) entries.push_back(look_at(found.path));
  return entries;
}

Newest find_newest(const fs::path& folder) {
  Newest newest;
  std::vector<Found> candidates = find_folders(folder, step_of_checkpoint);
  while (!candidates.empty() && !newest.entry) {
    Entry entry = look_at(candidates.back().path);
    candidates.pop_back();
    if (const std::string problem = problem_of(entry); problem.empty()) {
      newest.entry = std::move(entry);
    } else {
      newest.passed_over.push_back(entry.path.filename().string() + ": " + problem);
      ++newest.damaged;
    }
  }
  while (!candidates.empty() && newest.entry && !newest.entry->not_finite.empty() && !newest.finite) {
    Entry entry = look_at(candidates.back().path);
    candidates.pop_back();
    if (entry.leads_on() && problem_of(entry).empty()) newest.finite = std::move(entry);
  }
  const auto unfinished = [](const fs::path& path) { return step_of(path.filename().string(), kPartialPrefix); };
  for (const Found& partial : find_folders(folder, unfinished)) {
    if (newest.entry && partial.step <= newest.entry->about.step) continue;
    newest.passed_over.push_back(partial.path.filename().string() + ": it was not completed");
  }
  return newest;
}

std::vector<Entry> best_of(const std::vector<Entry>& entries, int count) {
  std::vector<Entry> best;
  for (const Entry* entry : by_metric(entries)) {
    if (static_cast<int>(best.size()) >= count) break;
    best.push_back(*entry);
  }
  return best;
}

void note_validation(const fs::path& checkpoint, const std::string& metric, std::optional<double> value) {
  Manifest manifest = read_manifest(checkpoint);
  manifest.about.awaits_validation = false;
  manifest.about.metric = value ? metric : "";
  manifest.about.metric_value = value;
  write_file_atomic(checkpoint / kManifestFile, to_text(manifest));
}

std::vector<Entry> superseded(const std::vector<Entry>& all, std::int64_t written, const Retention& retention) {
  std::vector<Entry> entries = all;
  std::erase_if(entries, [&](const Entry& entry) {
    const auto& passed_over = retention.passed_over;
    return entry.about.step != written && std::ranges::find(passed_over, entry.about.step) != passed_over.end();
  });
  std::set<std::int64_t> kept{written};
  for (const Entry& entry : best_of(entries, retention.best)) kept.insert(entry.about.step);
  for (const Entry& entry : entries) {
    if (entry.about.awaits_validation) kept.insert(entry.about.step);
  }

  std::vector<const Entry*> newest;
  for (const Entry& entry : entries) {
    if (entry.damage.empty() && entry.about.step != written) newest.push_back(&entry);
  }
  std::sort(newest.begin(), newest.end(), [](const Entry* a, const Entry* b) { return a->about.step > b->about.step; });
  for (std::size_t i = 0; i < newest.size() && static_cast<int>(i) + 1 < retention.latest; ++i) {
    kept.insert(newest[i]->about.step);
  }
  // If the new weights are not finite, the newest finite checkpoint stays: training can continue only from it.
  const auto newly_written = std::ranges::find(entries, written, [](const Entry& entry) { return entry.about.step; });
  if (newly_written != entries.end() && !newly_written->not_finite.empty()) {
    const auto finite = std::ranges::find_if(newest, &Entry::leads_on);
    if (finite != newest.end()) kept.insert((*finite)->about.step);
  }
  std::vector<Entry> gone;
  for (const Entry& entry : entries) {
    if (entry.damage.empty() && !kept.contains(entry.about.step)) gone.push_back(entry);
  }
  return gone;
}

}  // namespace dtrain::checkpoints
