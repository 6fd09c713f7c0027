// Writes the values in effect under the keys of the file, as plan.json shows them. Private to config.
#pragma once

#include "dtrain/config/keys.h"

namespace dtrain::config {

class PlanWriter : public Keys {
 public:
  static Json write(const Declare& declare);

  void visit(const Key& key, KeyType& type) override;
  void only(const Only& only, const Declare& declare) override;

 private:
  Json json_ = Json::object();
};

// Returns a whole number as such: 64 rather than 64.0.
Json number_json(double value);

}  // namespace dtrain::config
