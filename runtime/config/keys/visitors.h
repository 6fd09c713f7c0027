// The visitors of declared keys: they read a file, write plan.json and the JSON Schema, and list the keys that are
// lengths. Private to config.
#pragma once

#include <string>
#include <vector>

#include "document/section.h"
#include "dtrain/config/keys.h"

namespace dtrain::config {

// Reads the declared keys of a section into their fields.
class KeyReader : public Keys {
 public:
  // The treatment of the keys of an Only while its selector has no good value.
  enum class Unselected { kRefuse, kRead };

  // Reads all keys and reports those that nobody declared.
  static void read_all(Section& section, const Declare& declare, Unselected unselected = Unselected::kRefuse);
  // Reads only the keys that must be given.
  static void read_required(Section& section, const Declare& declare);

  void visit(const Key& key, KeyType& type) override;
  void only(const Only& only, const Declare& declare) override;
  void when_read(const std::function<void(Section&)>& function) override;

 private:
  // Required keys go first, so that missing keys are reported before errors in the others.
  enum class Pass { kMissing, kRequired, kOthers };

  KeyReader(Section& section, Pass pass, Unselected unselected)
      : section_(section), pass_(pass), unselected_(unselected) {}
  void report_if_missing(const Key& key, const KeyType& type);

  Section& section_;
  Pass pass_;
  Unselected unselected_;
  bool in_only_ = false;
  std::string refusal_;  // of the keys that are visited now; empty: they are read
};

// Writes the values in effect under the keys of the file, as plan.json shows them.
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

// Writes the JSON Schema (draft 07) of a mapping with the declared keys, whose fields are at their defaults.
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

// Returns the paths of the keys that are lengths: "searcher.max_length", ...
std::vector<std::string> length_paths(const Keys::Declare& declare);

}  // namespace dtrain::config
