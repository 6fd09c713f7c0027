// Tables of docs/experiment.md, made of the declarations of the keys.
#pragma once

#include <functional>
#include <string>

#include "dtrain/config/keys.h"

namespace dtrain::config {

// Markdown, with a row for each key whose whole path `in_table` wants.
std::string key_table(const Keys::Declare& declare, const std::function<bool(const std::string& path)>& in_table);

}  // namespace dtrain::config
