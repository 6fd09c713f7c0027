#include <string>

#include "dtrain/config/experiment.h"
#include "dtrain/config/schema.h"
#include "keys/schema_writer.h"

namespace dtrain::config {
namespace {

std::string make_experiment_schema() {
  Experiment defaults;
  Json schema{{"$schema", "http://json-schema.org/draft-07/schema#"},
              {"title", "dtrain experiment"},
              {"description", "What is trained and how. Every key has an effect or is an error."}};
  schema.update(SchemaWriter::write([&](Keys& keys) { declare_keys(keys, defaults); }));
  return schema.dump(2) + "\n";
}

}  // namespace

std::string_view experiment_schema() {
  static const std::string text = make_experiment_schema();
  return text;
}

}  // namespace dtrain::config
