// The rule by which validations lower the learning rate. Plain values and their keys. Trials use the struct too, so
// this header includes no other header of config.
#pragma once

#include <cstdint>
#include <limits>

namespace dtrain::config {

// Multiplies the learning rate of all parameters, beside any schedule, when searcher.metric no longer improves.
struct ReduceOnPlateau {
  double factor = 0.1;         // from 0 to below 1
  std::int64_t patience = 10;  // validations in a row without an improvement before that; at least 1
  double min_delta = 0;        // a smaller difference is no improvement; at least 0
  double min_factor = 0;       // the product of all factors stays at least this; from 0 to 1
  bool operator==(const ReduceOnPlateau&) const = default;
};

template <class Keys>
void declare_keys(Keys& keys, ReduceOnPlateau& r) {
  keys.number({"factor", "What lr is multiplied by."}, r.factor, {.min = 0, .max = 1, .below_max = true, .real = true});
  keys.integer({"patience", "lr falls after this number of validations in a row without an improvement."}, r.patience,
               {1, std::numeric_limits<std::int32_t>::max()});
  keys.number({"min_delta", "By how much a value must be better than the best one so far to be an improvement."},
              r.min_delta, {.min = 0, .max = 1'000'000, .real = true});
  keys.number({"min_factor", "lr does not fall below this part of what it would be without validations."}, r.min_factor,
              {.min = 0, .max = 1, .real = true});
}

}  // namespace dtrain::config
