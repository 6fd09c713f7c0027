// The reactions to validations that no longer improve: training ends early, or the learning rate falls. Plain values
// and their keys. Trials use the structs too, so this header includes no other header of config.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace dtrain::config {

// Ends training before its length.
struct EarlyStopping {
  std::string metric;             // of validation; empty: searcher.metric, with its smaller_is_better
  bool smaller_is_better = true;  // if the key is missing, for searcher.metric: searcher.smaller_is_better
  std::int64_t patience = 1;      // validations in a row without an improvement; at least 1
  double min_delta = 0;           // a smaller difference is no improvement; at least 0
  bool operator==(const EarlyStopping&) const = default;
};

template <class Keys>
void declare_keys(Keys& keys, EarlyStopping& e) {
  keys.text({.name = "metric",
             .text = "The validation metric that has to improve.",
             .examples = R"(["loss"])",
             .default_text = "searcher.metric"},
            e.metric);
  keys.boolean({.name = "smaller_is_better",
                .text = "Whether a smaller value of the metric is the better one.",
                .default_text = "as `searcher` for searcher.metric, else true"},
               e.smaller_is_better);
  keys.integer({.name = "patience",
                .text = "Training ends after this number of validations in a row without an improvement.",
                .more = "A value that is not finite is no improvement.",
                .examples = "[3]",
                .required = ""},
               e.patience, {1, std::numeric_limits<std::int32_t>::max()});
  keys.number({"min_delta", "By how much a value must be better than the best one so far to be an improvement."},
              e.min_delta, {.min = 0, .max = 1'000'000, .real = true});
}

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
