// A sketch as dumps have it: {"count", "sum", "min", "max", "zeros", "bins": [index, count, index, count, …]}.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/profile/sketch.h"

namespace dtrain::profile {

inline Json to_json(const Sketch& sketch) {
  Json bins = Json::array();
  for (const Sketch::Bin& bin : sketch.bins()) {
    bins.push_back(bin.index);
    bins.push_back(bin.count);
  }
  return {{"count", sketch.count()}, {"sum", sketch.sum()},     {"min", sketch.min()},
          {"max", sketch.max()},     {"zeros", sketch.zeros()}, {"bins", std::move(bins)}};
}

// Json::exception if it lacks a number; empty: it is damaged.
inline std::optional<Sketch> sketch_of_json(const Json& json) {
  const auto number = [&](const char* key) { return json.at(key).get<std::int64_t>(); };
  const auto bins = json.at("bins").get<std::vector<std::int64_t>>();
  return Sketch::restore(number("count"), number("sum"), number("min"), number("max"), number("zeros"), bins);
}

}  // namespace dtrain::profile
