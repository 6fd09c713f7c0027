// Writes the JSON Schema (draft 07) of a mapping with the declared keys, whose fields are at their defaults. Private to
// config.
#pragma once

#include <vector>

#include "dtrain/config/keys.h"

namespace dtrain::config {

class SchemaWriter : public Keys {
 public:
  static Json write(const Declare& declare);

  void visit(const Key& key, KeyType& type) override;
  void only(const Only& only, const Declare& declare) override;
  void schema_rule(const std::function<Json()>& rule) override;

 private:
  Json properties_ = Json::object();
  std::vector<std::string> required_;
  Json rules_ = Json::array();
};

}  // namespace dtrain::config
