// Reads a line of a dump into a record, by visiting the record's fields (dtrain/profile/records.h). The dump is not
// trusted: if a value is missing, of another type or implausible, the field keeps its default.
#pragma once

#include <simdjson.h>
#include <array>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "dtrain/analysis/dump_lines.h"
#include "read/json_fields.h"

namespace dtrain::analysis {

using Element = simdjson::dom::element;
using Object = simdjson::dom::object;
using Array = simdjson::dom::array;

inline std::int64_t to_integer(const Element& value, std::int64_t fallback = 0) {
  std::int64_t number = 0;
  if (value.get(number) == simdjson::SUCCESS) return std::abs(number) <= kLargestInteger ? number : fallback;
  double real = 0;
  if (value.is_double() && value.get(real) == simdjson::SUCCESS && std::abs(real) <= double(kLargestInteger)) {
    return static_cast<std::int64_t>(real);
  }
  return fallback;
}

inline double to_double(const Element& value) {
  double number = 0;
  return value.is_number() && value.get(number) == simdjson::SUCCESS ? number : 0;
}

inline std::string_view to_text(const Element& value) {
  std::string_view text;
  return value.get(text) == simdjson::SUCCESS ? text : std::string_view();
}

// Reads times of phases. With kIfKnown a missing phase has -1; otherwise "train_batch" includes its parts in the dump.
void read_phases(const Element& value, profile::Key::Form form, profile::PhaseTimes& phases);
// Returns a sketch; it is empty if the value is not a sketch.
profile::Sketch to_sketch(const Element& value);

class FieldReader {
 public:
  explicit FieldReader(const Object& object) : begin_(object.begin()), at_(begin_), end_(object.end()) {
    if (at_ != end_ && at_.key() == "record") ++at_;
  }

  template <typename T>
  void operator()(profile::Key key, T& value) {
    if constexpr (std::same_as<T, LoaderUsage>) {
      const int before = found_;
      LoaderUsage::fields(*this, value);
      if (found_ > before && value.batches == 0) value.batches = 1;
    } else if (find(key.name)) {
      read(at_.value(), key.form, value);
      ++at_;
    }
  }
  // Skips the value of the dump: it is computed from others.
  void operator()(profile::Key key, std::int64_t&&) {
    if (at_ != end_ && at_.key() == key.name) ++at_;
  }

 private:
  // Finds a key. Keys usually come in the order of the calls.
  bool find(std::string_view name) {
    if (at_ == end_ || at_.key() != name) {
      auto other = begin_;
      while (other != end_ && other.key() != name) ++other;
      if (other == end_) return false;
      at_ = other;
    }
    ++found_;
    return true;
  }

  template <std::integral T>
  static void read(const Element& element, profile::Key::Form form, T& value) {
    bool truth = false;
    if (form == profile::Key::kTruth) {
      if (element.get(truth) == simdjson::SUCCESS) value = truth;
      return;
    }
    const std::int64_t number = to_integer(element, value);
    if (std::in_range<T>(number)) value = static_cast<T>(number);
  }
  template <std::floating_point T>
  static void read(const Element& element, profile::Key::Form, T& value) {
    value = static_cast<T>(to_double(element));
  }
  static void read(const Element& element, profile::Key::Form, std::optional<double>& value) {
    if (element.is_number()) value = to_double(element);
  }
  static void read(const Element& element, profile::Key::Form, std::string& value) { value = to_text(element); }
  static void read(const Element& element, profile::Key::Form, Operation& value) {
    value = operation_of(to_text(element));
  }
  static void read(const Element& element, profile::Key::Form form, profile::PhaseTimes& value) {
    read_phases(element, form, value);
  }
  static void read(const Element& element, profile::Key::Form, profile::Sketch& value) { value = to_sketch(element); }
  static void read(const Element& element, profile::Key::Form,
                   std::array<profile::Sketch, profile::kPhaseCount>& value) {
    Object object;
    if (element.get(object) != simdjson::SUCCESS) return;
    FieldReader phases(object);
    for (std::size_t i = 0; i < value.size(); ++i) phases(name_of(static_cast<profile::Phase>(i)), value[i]);
  }
  template <typename T>
  static void read(const Element& element, profile::Key::Form form, std::vector<T>& value) {
    Array list;
    if (element.get(list) != simdjson::SUCCESS) return;
    constexpr std::size_t kMostItems = 1 << 16;  // a line of an untrusted file has any number of them
    for (const Element& item : list) {
      if (value.size() == kMostItems) return;
      if (item.is_object() || std::is_arithmetic_v<T>) read(item, form, value.emplace_back());
    }
  }
  template <typename T>
  requires std::is_class_v<T>
  static void read(const Element& element, profile::Key::Form, T& value) {
    Object object;
    if (element.get(object) != simdjson::SUCCESS) return;
    FieldReader fields(object);
    T::fields(fields, value);
  }

  Object::iterator begin_, at_, end_;
  int found_ = 0;
};

template <typename T>
T parse(const Object& object) {
  T line;
  FieldReader fields(object);
  T::fields(fields, line);
  return line;
}

}  // namespace dtrain::analysis
