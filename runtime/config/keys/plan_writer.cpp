#include "keys/plan_writer.h"

#include <cmath>

namespace dtrain::config {

Json PlanWriter::write(const Declare& declare) {
  PlanWriter writer;
  declare(writer);
  return std::move(writer.json_);
}

void PlanWriter::visit(const Key& key, KeyType& type) {
  if (key.in_plan && type.in_effect()) json_[key.name] = type.to_json();
}

void PlanWriter::only(const Only& only, const Declare& declare) {
  if (only.met()) declare(*this);
}

Json number_json(double value) {
  if (value == std::floor(value)) return static_cast<std::int64_t>(value);
  return value;
}

}  // namespace dtrain::config
