#include "folder/resume_point.h"

#include <chrono>
#include <thread>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/checkpoint/saver.h"
#include "dtrain/run/checkpoint_folder.h"
#include "folder/next_steps.h"

namespace dtrain::run {
namespace {

constexpr auto kSaverPatience = std::chrono::seconds(60);

// A file system may be without its files for a moment.
constexpr int kReadAgain = 3;
constexpr auto kReadAgainAfter = std::chrono::seconds(1);

// Of which nothing can be used, though they were completed once.
[[noreturn]] void refuse_damaged(const RunFolder& folder, const ResumePoint& point) {
  std::string text = "none of the checkpoints of the run " + folder.path.string() + " can be used:";
  for (int i = 0; i < point.damaged; ++i) text += "\n  " + point.passed_over[static_cast<std::size_t>(i)];
  std::string steps;
  for (const checkpoints::Entry& entry : checkpoints::list(find_checkpoint_folder(folder))) {
    steps += " " + std::to_string(entry.about.step);
  }
  std::string remedy =
      "to begin at batch 1, delete them with " + own_command() + " checkpoint delete " + reference_of(folder) + steps;
  const std::filesystem::path weights = folder.path / "checkpoints" / "final";
  std::error_code code;
  if (std::filesystem::exists(weights / checkpoints::kModelFile, code)) {
    remedy += "; or launch a new run with initial_weights: " + weights.string();
  }
  throw ConfigError(text, remedy);
}

// What to do where the weights of the checkpoint from which the run goes on are not finite.
std::string not_finite_text(const RunFolder& folder, const checkpoints::Newest& newest) {
  std::string text = "the checkpoint of batch " + std::to_string(newest.entry->about.step) +
                     " has values that are not finite (" + newest.entry->not_finite + ")";
  if (!newest.finite) return text + "; there is no earlier one with finite values";
  const std::string run = reference_of(folder);
  return text + "; the last one with finite values is " + newest.finite->path.filename().string() +
         "; to go on from there, end the run and delete what comes after it: " + own_command() + " checkpoint delete " +
         run + " --after " + std::to_string(newest.finite->about.step) + "; then " + own_command() +
         " launch --continue " + run;
}

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
  for (int again = 0; again < kReadAgain && !newest.entry && newest.damaged > 0; ++again) {
    std::this_thread::sleep_for(kReadAgainAfter);
    newest = checkpoints::find_newest(storage);
  }
  point.passed_over = std::move(newest.passed_over);
  point.damaged = newest.damaged;
  if (!newest.entry && point.damaged > 0) refuse_damaged(folder, point);
  if (!newest.entry) return point;
  point.path = newest.entry->path;
  point.step = newest.entry->about.step;
  point.epoch = newest.entry->about.epoch;
  if (!newest.entry->not_finite.empty()) point.not_finite = not_finite_text(folder, newest);
  return point;
}

Json to_json(const ResumePoint& point) {
  if (!point.exists()) return Json::object();
  return {{"resume_from", point.path.string()}, {"step", point.step}};
}

std::string text_of(const ResumePoint& point) {
  if (!point.exists()) return "the beginning, because there is no checkpoint of it";
  return point.path.filename().string() + " (batch " + std::to_string(point.step) + ", epoch " +
         std::to_string(point.epoch + 1) + ")";
}

std::vector<std::string> warnings_of(const ResumePoint& point) {
  std::vector<std::string> warnings;
  if (!point.still_saving.empty()) warnings.push_back(point.still_saving);
  if (!point.claimed.empty()) warnings.push_back(point.claimed);
  if (!point.not_finite.empty()) warnings.push_back(point.not_finite);
  for (const std::string& one : point.passed_over) warnings.push_back("a checkpoint is passed over: " + one);
  return warnings;
}

}  // namespace dtrain::run
