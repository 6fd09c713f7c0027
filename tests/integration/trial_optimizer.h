// hyperparameters.optimizer of the trials of these tests: {"kind": "sgd", "lr": 0.05, …}.
#pragma once

#include <string>

#include <dtrain/dtrain.h>

namespace dtrain::test {

inline Optimizer make_optimizer(const Json& options) {
  const auto kind = options.at("kind").get<std::string>();
  const double lr = options.at("lr");
  if (kind == "sgd") {
    return Sgd{.lr = lr,
               .momentum = options.value("momentum", 0.0),
               .weight_decay = options.value("weight_decay", 0.0),
               .nesterov = options.value("nesterov", false)};
  }
  if (kind == "adam") return Adam{.lr = lr, .weight_decay = options.value("weight_decay", 0.0)};
  if (kind == "adamw") return AdamW{.lr = lr, .weight_decay = options.value("weight_decay", 0.01)};
  throw ConfigError("hyperparameters.optimizer.kind is " + kind);
}

}  // namespace dtrain::test
