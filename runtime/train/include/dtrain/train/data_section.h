// The experiment's `data` section as a trial reads it. It records which keys were read, because a key that the trial
// does not read is probably misspelled; a warning names it. One thread.
#pragma once

#include <set>
#include <string>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"

namespace dtrain {

class DataSection {
 public:
  explicit DataSection(const Json& json) : json_(&json) {}

  bool contains(const std::string& key) const {
    asked_.insert(key);
    return json_->contains(key);
  }
  // ConfigError if the key is missing.
  const Json& at(const std::string& key) const {
    if (!contains(key))
      throw ConfigError("data." + key + " is missing", "the trial needs it: add it to the experiment");
    return json_->at(key);
  }
  const Json& operator[](const std::string& key) const { return at(key); }
  // Returns the value of a key, in the type of `if_missing`, or `if_missing` if there is no such key. ConfigError if
  // the value has another type.
  template <typename T>
  auto value(const std::string& key, T&& if_missing) const {
    const bool given = contains(key);
    try {
      return json_->value(key, std::forward<T>(if_missing));
    } catch (const Json::exception&) {
      throw ConfigError("data." + key + " is " + (given ? json_->at(key).dump() : "") + ", which the trial cannot use",
                        "give it the type the trial asks for");
    }
  }
  // Returns the whole section; every key counts as read.
  const Json& json() const {
    all_ = true;
    return *json_;
  }
  operator const Json&() const { return json(); }

  // Used by TrialContext.
  const Json& given() const { return *json_; }
  const std::set<std::string>& asked() const { return asked_; }
  bool all_asked() const { return all_; }

 private:
  const Json* json_;
  mutable std::set<std::string> asked_;
  mutable bool all_ = false;
};

}  // namespace dtrain
