// JSON Schemas of the files that config reads (draft 07, which the YAML language servers of editors support best). The
// schema of experiments is made from the keys' declarations. That of clusters is
// runtime/config/cluster/cluster.schema.json, which the build embeds. tests/config/schema_test.py checks that schemas
// and readers accept the same files.
#pragma once

#include <string_view>

namespace dtrain::config {

std::string_view experiment_schema();
std::string_view cluster_schema();

}  // namespace dtrain::config
