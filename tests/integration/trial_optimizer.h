// hyperparameters.optimizer of the trials of these tests: {"kind": "sgd", "lr": 0.05, …}.
#pragma once

#include <optional>
#include <string>
#include <vector>

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
  const double decay = options.value("weight_decay", 0.0);
  if (kind == "radam") return RAdam{.lr = lr, .weight_decay = decay};
  if (kind == "rmsprop") {
    return RmsProp{.lr = lr,
                   .momentum = options.value("momentum", 0.0),
                   .weight_decay = decay,
                   .centered = options.value("centered", false)};
  }
  if (kind == "adagrad") {
    return Adagrad{.lr = lr, .lr_decay = options.value("lr_decay", 0.0), .weight_decay = decay};
  }
  if (kind == "lion") return Lion{.lr = lr, .weight_decay = decay};
  if (kind == "lamb") return Lamb{.lr = lr, .weight_decay = decay};
  if (kind == "muon") {
    return Muon{.lr = lr,
                .nesterov = options.value("nesterov", true),
                .match_rms_adamw = options.value("match_rms_adamw", false),
                .weight_decay = decay,
                .adamw_match = options.value("adamw_match", ""),
                .adamw_lr = options.at("adamw_lr")};
  }
  throw ConfigError("hyperparameters.optimizer.kind is " + kind);
}

// hyperparameters.groups: [{"match": "*.bias", …}], with what differs from hyperparameters.optimizer.
inline std::vector<ParameterGroup> make_groups(const Json& optimizer, const Json& groups) {
  std::vector<ParameterGroup> result;
  for (const Json& group : groups) {
    Json settings = optimizer;
    settings.update(group);
    const auto match = group.at("match").get<std::string>();
    const auto limit = [&](const char* key) {
      return group.contains(key) ? std::optional(group[key].get<double>()) : std::nullopt;
    };
    result.push_back({.name = match,
                      .includes = matching(match),
                      .optimizer = make_optimizer(settings),
                      .schedule = {},
                      .max_gradient_norm = limit("max_gradient_norm"),
                      .max_gradient_value = limit("max_gradient_value")});
  }
  return result;
}

// hyperparameters.schedule: ["one_cycle", 25].
inline LrSchedule make_schedule(const Json& schedule) {
  const auto kind = schedule.at(0).get<std::string>();
  const auto number = [&](std::size_t index) { return schedule.at(index).get<double>(); };
  const auto steps = [&](std::size_t index) { return schedule.at(index).get<std::int64_t>(); };
  if (kind == "one_cycle") return lr::one_cycle(steps(1));
  if (kind == "linear") return lr::linear(steps(1), number(2), number(3));
  if (kind == "polynomial") return lr::polynomial(steps(1), number(2));
  if (kind == "cosine") return lr::cosine(steps(1));
  if (kind == "exponential") return lr::exponential(number(1));
  if (kind == "multi_step") return lr::multi_step({steps(1), steps(2)}, number(3));
  throw ConfigError("hyperparameters.schedule is " + schedule.dump());
}

}  // namespace dtrain::test
