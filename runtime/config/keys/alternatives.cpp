// The keys of a closed list's alternatives, each visited once: for the alternatives that have it.
#include <algorithm>

#include "dtrain/base/error.h"
#include "dtrain/config/keys.h"

namespace dtrain::config {
namespace {

// A visitor of one alternative.
class AlternativeKeys : public Keys {
 public:
  void only(const Only& only, const Declare&) override {
    throw Error(std::string("keys of an alternative depend on ") + only.selector, "declare them without only_with()");
  }
};

class NameCollector : public AlternativeKeys {
 public:
  void visit(const Key& key, KeyType&) override { names.emplace_back(key.name); }
  std::vector<std::string> names;
};

// Passes on the declarations of one key.
class OneKey : public AlternativeKeys {
 public:
  OneKey(Keys& keys, const std::string& name) : keys_(keys), name_(name) {}
  void visit(const Key& key, KeyType& type) override {
    if (key.name == name_) keys_.visit(key, type);
  }

 private:
  Keys& keys_;
  const std::string& name_;
};

// Passes on the declarations across keys.
class AcrossKeys : public AlternativeKeys {
 public:
  AcrossKeys(Keys& keys, bool chosen) : keys_(keys), chosen_(chosen) {}
  void visit(const Key&, KeyType&) override {}
  void when_read(const std::function<void(Section&)>& function) override {
    if (chosen_) keys_.when_read(function);
  }
  void schema_rule(const std::function<Json()>& rule) override { keys_.schema_rule(rule); }

 private:
  Keys& keys_;
  bool chosen_;
};

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

bool Only::met() const {
  return std::find(owners.begin(), owners.end(), chosen) != owners.end();
}

void Keys::only(const Only&, const Declare& declare) {
  declare(*this);
}

void Keys::visit_alternatives(const char* selector, const std::vector<Alternative>& alternatives, std::size_t chosen) {
  std::vector<std::vector<std::string>> keys_of;
  std::vector<std::string> names;  // of all alternatives, in the order of their first declaration
  for (const Alternative& alternative : alternatives) {
    NameCollector collector;
    alternative.declare(collector);
    for (const std::string& name : collector.names) {
      if (!has(names, name)) names.push_back(name);
    }
    keys_of.push_back(std::move(collector.names));
  }
  for (const std::string& name : names) {
    Only only{selector, {}, {}, alternatives[chosen].word};
    std::size_t shown = alternatives.size();  // the alternative whose field the key is bound to
    for (std::size_t i = 0; i < alternatives.size(); ++i) {
      const bool owns = has(keys_of[i], name);
      if (owns && (shown == alternatives.size() || i == chosen)) shown = i;
      if (!alternatives[i].word.empty()) (owns ? only.owners : only.others).push_back(alternatives[i].word);
    }
    const auto declare = [&](Keys& keys) {
      OneKey only_this(keys, name);
      alternatives[shown].declare(only_this);
    };
    if (only.others.empty()) {
      declare(*this);
    } else {
      this->only(only, declare);
    }
  }
  for (std::size_t i = 0; i < alternatives.size(); ++i) {
    AcrossKeys across(*this, i == chosen);
    alternatives[i].declare(across);
  }
}

}  // namespace dtrain::config
