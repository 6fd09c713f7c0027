#include "keys/key_reader.h"

#include <algorithm>

#include "dtrain/base/text.h"

namespace dtrain::config {
namespace {

std::string refusal_of(const Only& only) {
  if (only.chosen.empty()) {
    return std::string("has an effect with ") + only.selector + " " + join_with_and(only.owners) + " alone";
  }
  return std::string("has no effect with ") + only.selector + " " + only.chosen + "; " + join_with_and(only.owners) +
         (only.owners.size() == 1 ? " has it" : " have it");
}

bool has_good_value(Section& section, const Only& only) {
  const Value* value = section.find(only.selector);
  const auto among = [&](const std::vector<std::string>& words) {
    return std::find(words.begin(), words.end(), value->text) != words.end();
  };
  return value && value->is_scalar() && (among(only.owners) || among(only.others));
}

}  // namespace

void KeyReader::read_required(Section& section, const Declare& declare) {
  for (const Pass pass : {Pass::kMissing, Pass::kRequired}) {
    KeyReader reader(section, pass, Unselected::kRefuse);
    declare(reader);
  }
}

void KeyReader::read_all(Section& section, const Declare& declare, Unselected unselected) {
  read_required(section, declare);
  KeyReader reader(section, Pass::kOthers, unselected);
  declare(reader);
  section.finish();
}

void KeyReader::report_if_missing(const Key& key, const KeyType& type) {
  if (key.required && !section_.find(key.name))
    section_.report_missing(key.name, *key.required ? key.required : type.what_it_is());
}

void KeyReader::visit(const Key& key, KeyType& type) {
  if (!refusal_.empty()) {
    if (const Value* value = section_.find(key.name)) section_.report(*value, key.name, refusal_);
    return;
  }
  if (pass_ == Pass::kMissing) return report_if_missing(key, type);
  if (!in_only_ && (key.required != nullptr) != (pass_ == Pass::kRequired)) return;
  if (in_only_) report_if_missing(key, type);
  type.read(section_, key);
}

void KeyReader::only(const Only& only, const Declare& declare) {
  if (pass_ != Pass::kOthers) return;
  const bool read_anyway = unselected_ == Unselected::kRead && !has_good_value(section_, only);
  if (!only.met() && !read_anyway) refusal_ = refusal_of(only);
  in_only_ = true;
  declare(*this);
  in_only_ = false;
  refusal_.clear();
}

void KeyReader::when_read(const std::function<void(Section&)>& function) {
  if (pass_ == Pass::kOthers && refusal_.empty()) function(section_);
}

}  // namespace dtrain::config
