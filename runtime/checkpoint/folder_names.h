// The names of folders in a storage folder. Any thread.
//
//   step-120            a checkpoint
//   .partial-step-120   one that is being written, or whose saver has died
//   .deleted-step-120   one that is being deleted, or whose deletion was cut short
//   .replaced-step-120  one that step-120 is replacing, on file systems that cannot exchange two folders in one step.
//   It
//                       counts as step-120 until there is one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dtrain::checkpoints {

inline constexpr std::string_view kStepPrefix = "step-";
inline constexpr std::string_view kPartialPrefix = ".partial-step-";
inline constexpr std::string_view kDeletedPrefix = ".deleted-step-";
inline constexpr std::string_view kReplacedPrefix = ".replaced-step-";
inline constexpr const char* kLockFile = ".saver.lock";

std::string folder_name(std::string_view prefix, std::int64_t step);
inline std::string step_folder(std::int64_t step) {
  return folder_name(kStepPrefix, step);
}
// The number in such a name; empty: it is not one.
std::optional<std::int64_t> step_of(std::string_view name, std::string_view prefix);
// The number in the name of a checkpoint, whole or replaced.
std::optional<std::int64_t> step_of_folder(std::string_view name);

}  // namespace dtrain::checkpoints
