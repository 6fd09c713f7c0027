#include "folder_names.h"

#include <charconv>

namespace dtrain::checkpoints {

std::string folder_name(std::string_view prefix, std::int64_t step) {
  return std::string(prefix) + std::to_string(step);
}

std::optional<std::int64_t> step_of(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  std::int64_t step = 0;
  const std::string_view digits = name.substr(prefix.size());
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return folder_name(prefix, step) == name && step >= 0 ? std::optional(step) : std::nullopt;  // no leading zeros
}

std::optional<std::int64_t> step_of_folder(std::string_view name) {
  const auto step = step_of(name, kStepPrefix);
  return step ? step : step_of(name, kReplacedPrefix);
}

}  // namespace dtrain::checkpoints
