// Tables of docs/experiment.md, made of the declarations of the keys.
#pragma once

#include <functional>
#include <string>

#include "dtrain/config/keys.h"

namespace dtrain::config {

// Markdown, with a row for each key whose whole path `in_table` wants.
std::string key_table(const Keys::Declare& declare, const std::function<bool(const std::string& path)>& in_table);

// The text with `table` between the lines "<!-- keys: NAME ... -->" and "<!-- end of keys -->"; empty where they are
// not.
std::string with_table(const std::string& text, const std::string& name, const std::string& table);

}  // namespace dtrain::config
