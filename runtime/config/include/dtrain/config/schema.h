// JSON Schemas (draft 07, what editors' YAML language servers know best) of the files that config reads. That of
// experiments is made of the keys' declarations; that of clusters is runtime/config/cluster/cluster.schema.json,
// embedded when dtrain is built. tests/config/schema_test.py keeps them and the readers equal.
#pragma once

#include <string_view>

namespace dtrain::config {

std::string_view experiment_schema();
std::string_view cluster_schema();

}  // namespace dtrain::config
