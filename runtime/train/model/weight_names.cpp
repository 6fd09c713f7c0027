#include "model/weight_names.h"

#include "dtrain/base/error.h"

namespace dtrain::train {

std::string WeightNames::in_model(const std::string& name_in_file) {
  std::string name = name_in_file;
  if (!weights_.strip_prefix.empty() && name.starts_with(weights_.strip_prefix)) {
    name.erase(0, weights_.strip_prefix.size());
    stripped_ = true;
  }
  std::size_t chosen = weights_.rename.size();
  for (std::size_t i = 0; i < weights_.rename.size(); ++i) {
    const std::string& from = weights_.rename[i].first;
    if (!name.starts_with(from)) continue;
    renamed_[i] = true;
    if (chosen == weights_.rename.size() || from.size() > weights_.rename[chosen].first.size()) chosen = i;
  }
  if (chosen == weights_.rename.size()) return name;
  const auto& [from, to] = weights_.rename[chosen];
  return to + name.substr(from.size());
}

void WeightNames::check_used(const std::filesystem::path& file) const {
  const auto refuse = [&](const std::string& key, const std::string& beginning) {
    throw ConfigError("initial_weights." + key + ": no tensor of " + weights_.file.string() +
                          " has a name that begins with '" + beginning + "'",
                      "look at the names: python3 -c 'from safetensors import safe_open; "
                      "print(safe_open(\"" +
                          file.string() + "\", \"pt\").keys())'");
  };
  if (!weights_.strip_prefix.empty() && !stripped_) refuse("strip_prefix", weights_.strip_prefix);
  for (std::size_t i = 0; i < renamed_.size(); ++i) {
    if (!renamed_[i]) refuse("rename", weights_.rename[i].first);
  }
}

}  // namespace dtrain::train
