// JSON Schemas (draft 07, what editors' YAML language servers know best) of the files that config reads: the texts of
// runtime/config/schema/, embedded when dtrain is built. tests/config/schema_test.py keeps them and the readers equal.
#pragma once

#include <string_view>

namespace dtrain::config {

std::string_view experiment_schema();
std::string_view cluster_schema();

}  // namespace dtrain::config
