#include "worker/outputs.h"

#include <algorithm>
#include <optional>

#include <ATen/core/function_schema.h>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"

namespace dtrain::worker {
namespace {

// Returns the names of a named tuple's elements; empty for a plain tuple.
std::vector<std::string> names_of(const c10::TupleType& type) {
  std::vector<std::string> names;
  if (const auto& schema = type.schema()) {
    for (const c10::Argument& element : schema->arguments()) names.push_back(element.name());
  }
  return names;
}

std::optional<std::size_t> element_of(const c10::TupleType& type, const std::string& choice) {
  const std::vector<std::string> names = names_of(type);
  if (const auto found = std::find(names.begin(), names.end(), choice); found != names.end())
    return static_cast<std::size_t>(found - names.begin());
  const auto number = to_number<std::size_t>(choice);
  return number && *number < type.elements().size() ? number : std::nullopt;
}

std::string elements_of(const c10::TupleType& type) {
  const std::vector<std::string> names = names_of(type);
  if (!names.empty()) return join(names, ", ");
  const std::size_t count = type.elements().size();
  return count == 1 ? "0" : "0 to " + std::to_string(count - 1);
}

std::string none_such(const OutputChoice& choice) {
  return choice.key + " is '" + choice.name + "', but the model's forward() returns ";
}

constexpr const char* kScoresAlone = "let it return the scores alone, or choose an output with loss.output";

}  // namespace

void check_choice(const c10::TypePtr& returned, const OutputChoice& choice, const std::string& file) {
  const auto tuple = returned->cast<c10::TupleType>();
  const bool several = tuple || returned->cast<c10::DictType>();
  if (choice.name.empty()) {
    const auto& tensor = *c10::TensorType::get();
    if (returned->isSubtypeOf(tensor) || (!several && tensor.isSubtypeOf(*returned))) return;
    throw ConfigError("model: " + file + ": forward() returns " + returned->annotation_str() + ", not a Tensor",
                      several ? kScoresAlone : "let it return the scores alone");
  }
  if (returned->isSubtypeOf(*c10::TensorType::get())) {
    throw ConfigError("model: " + file + ": " + none_such(choice) + "one Tensor", "remove " + choice.key);
  }
  if (tuple && !element_of(*tuple, choice.name)) {
    throw ConfigError("model: " + file + ": " + none_such(choice) + returned->annotation_str(),
                      "its outputs are: " + elements_of(*tuple));
  }
}

at::Tensor chosen_output(const c10::IValue& returned, const OutputChoice& choice) {
  c10::IValue value = returned;
  if (!choice.name.empty() && returned.isTuple()) {
    const auto type = returned.toTuple()->type();
    const auto element = element_of(*type, choice.name);
    if (!element)
      throw Error(none_such(choice) + returned.type()->annotation_str(), "its outputs are: " + elements_of(*type));
    value = returned.toTuple()->elements()[*element];
  } else if (!choice.name.empty() && returned.isGenericDict()) {
    const auto dict = returned.toGenericDict();
    const auto found = std::find_if(dict.begin(), dict.end(), [&](const auto& entry) {
      return entry.key().isString() && entry.key().toStringRef() == choice.name;
    });
    if (found == dict.end()) {
      std::vector<std::string> keys;
      for (const auto& entry : dict) {
        if (entry.key().isString()) keys.push_back(entry.key().toStringRef());
      }
      throw Error(none_such(choice) + "a dict without it", "its outputs are: " + join(keys, ", "));
    }
    value = found->value();
  } else if (!choice.name.empty()) {
    throw Error(none_such(choice) + returned.type()->annotation_str(), "let it return a tuple or a dict of tensors");
  }
  if (value.isTensor() && value.toTensor().defined()) return value.toTensor();
  if (choice.name.empty()) {
    throw Error("the model's forward() returned " + value.type()->annotation_str() + ", not a Tensor",
                value.isTuple() || value.isGenericDict() ? kScoresAlone : "let it return the scores alone");
  }
  throw Error("the model's output '" + choice.name + "' (" + choice.key + ") is " + value.type()->annotation_str() +
                  ", not a Tensor",
              "choose an output that is a tensor");
}

}  // namespace dtrain::worker
