// `loss` of a `model:` experiment: which loss, and which outputs of the model it gets. Plain values and their keys.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dtrain/config/keys.h"
#include "dtrain/config/losses.h"

namespace dtrain::config {

// Names of outputs and the factors of their losses, in the order of the file.
using AuxiliaryOutputs = std::vector<std::pair<std::string, double>>;

struct LossSettings {
  Loss loss;
  // The output that the loss takes: a name, or a number from 0 on. Empty: forward() returns one tensor.
  std::string output;
  AuxiliaryOutputs auxiliary;
  bool operator==(const LossSettings&) const = default;
};

// A list of numbers, none of them negative.
void declare_numbers(Keys& keys, const Key& key, std::vector<double>& numbers);
void declare_auxiliary(Keys& keys, const Key& key, AuxiliaryOutputs& auxiliary);

inline void declare_keys(Keys& keys, LossSettings& s) {
  keys.one_of({.name = "kind",
               .text = "Which loss. A word in place of the mapping is the same as its kind alone.",
               .required = ""},
              s.loss);
  keys.text({.name = "output",
             .text = "Which output of the model the loss gets, if forward() returns a tuple or a dict: a name, or a "
                     "number from 0 on.",
             .examples = R"(["logits", 0])",
             .default_text = "none"},
            s.output);
  declare_auxiliary(keys,
                    {.name = "auxiliary",
                     .text = "Further outputs, by name or number, and factors: in training, the loss of each such "
                             "output, times its factor, is added to the loss.",
                     .examples = R"([{"aux_logits": 0.4}])"},
                    s.auxiliary);
}

}  // namespace dtrain::config
