#include "folder/resume_point.h"

#include <chrono>

#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/checkpoint/saver.h"
#include "dtrain/run/checkpoint_folder.h"

namespace dtrain::run {
namespace {

constexpr auto kSaverPatience = std::chrono::seconds(60);

}  // namespace

ResumePoint find_resume_point(const RunFolder& folder) {
  const std::filesystem::path storage = find_checkpoint_folder(folder);
  ResumePoint point;
  std::error_code code;
  if (!std::filesystem::is_directory(storage, code)) return point;
  if (!checkpoints::wait_for_savers(storage, kSaverPatience)) {
    point.still_saving = "a saver of an earlier attempt has been writing into " + storage.string() + " for more than " +
                         std::to_string(kSaverPatience.count()) + " s; what it writes is not waited for";
  }
  checkpoints::Newest newest = checkpoints::find_newest(storage);
  point.passed_over = std::move(newest.passed_over);
  point.damaged = newest.damaged;
  if (!newest.entry) return point;
  point.path = newest.entry->path;
  point.step = newest.entry->about.step;
  point.epoch = newest.entry->about.epoch;
  return point;
}

Json to_json(const ResumePoint& point) {
  if (!point.exists()) return Json::object();
  return {{"resume_from", point.path.string()}, {"step", point.step}};
}

std::string text_of(const ResumePoint& point) {
  if (!point.exists()) {
    return point.passed_over.empty() ? "the beginning, because there is no checkpoint of it"
                                     : "the beginning, because none of its checkpoints can be used";
  }
  return point.path.filename().string() + " (batch " + std::to_string(point.step) + ", epoch " +
         std::to_string(point.epoch + 1) + ")";
}

std::vector<std::string> warnings_of(const ResumePoint& point) {
  std::vector<std::string> warnings;
  if (!point.still_saving.empty()) warnings.push_back(point.still_saving);
  for (const std::string& one : point.passed_over) warnings.push_back("a checkpoint is passed over: " + one);
  return warnings;
}

}  // namespace dtrain::run
