// The optimizers: the list. Each is a struct with the word by which an experiment names it (kWord), whether an update
// is one kernel that reads and writes each value once (kFused), its settings with their keys, and the function that
// makes its update, which runtime/train/model/optimizers/NAME.cpp defines. Names, meanings and defaults are those of
// torch.optim. To add one: a struct here, its file there, and docs/api.md.
//
// Trials use these structs too (dtrain/train/optimizer.h). So they are in namespace dtrain, and this header includes no
// other header of config. dtrain/config/optimizer.h declares what the templates need from them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>

namespace dtrain::train {
class OptimizerUpdate;  // runtime/train/model/optimizer_update.h
}

namespace dtrain::config {

// Keys that several optimizers have.

template <class Keys>
void declare_lr(Keys& keys, double& lr) {
  keys.number({.name = "lr",
               .text = "The learning rate, above 0.",
               .examples = "[0.001]",
               .required = "the learning rate, a number above 0"},
              lr, {.min = 0, .max = 0, .above_min = true, .open = true, .real = true});
}

template <class Keys>
void declare_weight_decay(Keys& keys, double& weight_decay) {
  keys.number({.name = "weight_decay",
               .text = "The weight decay. Default: 0; adamw, lamb: 0.01; muon: 0.1.",
               .examples = "[0, 0.01]",
               .default_text = "0; adamw, lamb: 0.01; muon: 0.1"},
              weight_decay, {.min = 0, .max = 1'000'000, .real = true});
}

template <class Keys>
void declare_decays(Keys& keys, double& beta1, double& beta2) {
  declare_betas(
      keys,
      {.name = "betas",
       .text = "adam, adamw, radam, lamb: the decay of the running averages of the gradient and of its square; muon: "
               "the same for what adamw updates; lion: how much of the average is in the direction of a step, and the "
               "decay of the average.",
       .default_text = "[0.9, 0.999]; lion: [0.9, 0.99]"},
      beta1, beta2);
}

template <class Keys>
void declare_eps(Keys& keys, double& eps) {
  keys.number({.name = "eps",
               .text = "adam, adamw, radam, rmsprop, adagrad, lamb: a number added to the denominator; muon: the same "
                       "for what adamw updates.",
               .default_text = "1e-8; adagrad: 1e-10; lamb: 1e-6"},
              eps, {.min = 0, .max = 1'000'000, .real = true});
}

template <class Keys>
void declare_momentum(Keys& keys, double& momentum) {
  keys.number({.name = "momentum", .text = "sgd, rmsprop, muon: the momentum.", .default_text = "0; muon: 0.95"},
              momentum, {.min = 0, .max = 1, .real = true});
}

template <class Keys>
void declare_nesterov(Keys& keys, bool& nesterov) {
  keys.boolean({.name = "nesterov",
                .text = "sgd, muon: Nesterov momentum. With sgd it needs a momentum and no dampening.",
                .default_text = "false; muon: true"},
               nesterov);
}

template <class Keys>
void declare_averages(Keys& keys, double& beta1, double& beta2, double& eps) {
  declare_decays(keys, beta1, beta2);
  declare_eps(keys, eps);
}

}  // namespace dtrain::config

namespace dtrain {

// Stochastic gradient descent, with momentum or without.
struct Sgd {
  static constexpr const char* kWord = "sgd";
  static constexpr bool kFused = true;
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;  // needs a momentum and no dampening
  template <class Keys>
  void declare_keys(Keys& keys) {
    declare_lr(keys, lr);
    declare_momentum(keys, momentum);
    keys.number({"dampening", "sgd: the part of a new gradient that does not enter the momentum."}, dampening,
                {.min = 0, .max = 1, .real = true});
    declare_nesterov(keys, nesterov);
    declare_weight_decay(keys, weight_decay);
    declare_nesterov_needs(keys, *this);
  }
  // make_update() of each struct: ConfigError for settings that make no sense.
  std::unique_ptr<train::OptimizerUpdate> make_update() const;
  bool operator==(const Sgd&) const = default;
};

// Kingma and Ba, arXiv:1412.6980; weight decay added to the gradient.
struct Adam {
  static constexpr const char* kWord = "adam";
  static constexpr bool kFused = true;
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  template <class Keys>
  void declare_keys(Keys& keys) {
    declare_lr(keys, lr);
    declare_averages(keys, beta1, beta2, eps);
    declare_weight_decay(keys, weight_decay);
  }
  std::unique_ptr<train::OptimizerUpdate> make_update() const;
  bool operator==(const Adam&) const = default;
};

// Loshchilov and Hutter, arXiv:1711.05101: weight decay decoupled from the gradient.
struct AdamW {
  static constexpr const char* kWord = "adamw";
  static constexpr bool kFused = true;
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  template <class Keys>
  void declare_keys(Keys& keys) {
    declare_lr(keys, lr);
    declare_averages(keys, beta1, beta2, eps);
    declare_weight_decay(keys, weight_decay);
  }
  std::unique_ptr<train::OptimizerUpdate> make_update() const;
  bool operator==(const AdamW&) const = default;
};

// Liu and others, arXiv:1908.03265; weight decay added to the gradient. Made of tensor operations.
struct RAdam {
  static constexpr const char* kWord = "radam";
  static constexpr bool kFused = false;
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  template <class Keys>
  void declare_keys(Keys& keys) {
    declare_lr(keys, lr);
    declare_averages(keys, beta1, beta2, eps);
    declare_weight_decay(keys, weight_decay);
  }
  std::unique_ptr<train::OptimizerUpdate> make_update() const;
  bool operator==(const RAdam&) const = default;
};

// Hinton, Srivastava and Swersky, lecture 6e of "Neural Networks for Machine Learning" (2012). Made of tensor
// operations.
struct RmsProp {
  static constexpr const char* kWord = "rmsprop";
  static constexpr bool kFused = false;
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double momentum = 0;
  double weight_decay = 0;
  bool centered = false;  // divides by the gradient's standard deviation, not by its root mean square
  template <class Keys>
  void declare_keys(Keys& keys) {
    declare_lr(keys, lr);
    keys.number({"alpha", "rmsprop: the decay of the running averages."}, alpha,
                {.min = 0, .max = 1, .below_max = true, .real = true});
    declare_eps(keys, eps);
    declare_momentum(keys, momentum);
    keys.boolean({"centered", "rmsprop: divide by the gradient's standard deviation, not by its root mean square."},
                 centered);
    declare_weight_decay(keys, weight_decay);
  }
  std::unique_ptr<train::OptimizerUpdate> make_update() const;
  bool operator==(const RmsProp&) const = default;
};

// Duchi, Hazan and Singer, JMLR 12 (2011). Made of tensor operations.
struct Adagrad {
  static constexpr const char* kWord = "adagrad";
  static constexpr bool kFused = false;
  double lr = 1e-2;
  double lr_decay = 0;  // update n has the rate lr / (1 + (n - 1) * lr_decay)
  double eps = 1e-10;
  double weight_decay = 0;
  template <class Keys>
  void declare_keys(Keys& keys) {
    declare_lr(keys, lr);
    keys.number({"lr_decay", "adagrad: update n of a parameter has the rate lr / (1 + (n - 1) * lr_decay)."}, lr_decay,
                {.min = 0, .max = 1'000'000, .real = true});
    declare_eps(keys, eps);
    declare_weight_decay(keys, weight_decay);
  }
  std::unique_ptr<train::OptimizerUpdate> make_update() const;
  bool operator==(const Adagrad&) const = default;
};

// Chen and others, arXiv:2302.06675: steps by the sign of a running average; weight decay decoupled. Made of tensor
// operations.
struct Lion {
  static constexpr const char* kWord = "lion";
  static constexpr bool kFused = false;
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;
  template <class Keys>
  void declare_keys(Keys& keys) {
    declare_lr(keys, lr);
    declare_decays(keys, beta1, beta2);
    declare_weight_decay(keys, weight_decay);
  }
  std::unique_ptr<train::OptimizerUpdate> make_update() const;
  bool operator==(const Lion&) const = default;
};

// You and others, arXiv:1904.00962: AdamW's step, scaled for each parameter by the norm of its values over that of the
// step. Made of tensor operations. Where updates are sharded, ranks add up the norms of parameters that they have in
// parts.
struct Lamb {
  static constexpr const char* kWord = "lamb";
  static constexpr bool kFused = false;
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 1e-2;
  template <class Keys>
  void declare_keys(Keys& keys) {
    declare_lr(keys, lr);
    declare_averages(keys, beta1, beta2, eps);
    declare_weight_decay(keys, weight_decay);
  }
  std::unique_ptr<train::OptimizerUpdate> make_update() const;
  bool operator==(const Lamb&) const = default;
};

// Jordan, "Muon: An optimizer for hidden layers in neural networks" (2024): steps of matrices (parameters of two
// dimensions) are made orthogonal; all other parameters, and those that adamw_match includes, are updated as by AdamW.
// Made of tensor operations. Updates are not sharded.
struct Muon {
  static constexpr const char* kWord = "muon";
  static constexpr bool kFused = false;
  static constexpr bool kWholeParameters = true;
  double lr = 1e-3;  // above 0
  double momentum = 0.95;
  bool nesterov = true;
  std::int64_t ns_steps = 5;     // Newton-Schulz iterations, 1 to 99
  bool match_rms_adamw = false;  // scales steps to the usual size of AdamW's, 0.2 * sqrt(the longer side)
  double weight_decay = 0.1;     // of all parameters, decoupled
  std::string adamw_match;       // patterns over names, divided by |: embeddings and the output layer, say
  double adamw_lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  template <class Keys>
  void declare_keys(Keys& keys) {
    declare_lr(keys, lr);
    declare_momentum(keys, momentum);
    declare_nesterov(keys, nesterov);
    keys.integer({"ns_steps", "muon: the number of Newton-Schulz iterations that make a step orthogonal."}, ns_steps,
                 {1, 99, true});
    keys.boolean({"match_rms_adamw",
                  "muon: scale steps to the usual size of adamw's, by 0.2 * sqrt(the longer side); otherwise by "
                  "sqrt(rows / columns), at least 1."},
                 match_rms_adamw);
    keys.number({.name = "adamw_lr",
                 .text = "muon: the learning rate of what adamw updates: all parameters that have not two dimensions, "
                         "and those of adamw_match.",
                 .examples = "[0.001]"},
                adamw_lr, {.min = 0, .max = 0, .above_min = true, .open = true, .real = true});
    keys.text({.name = "adamw_match",
               .text = "muon: which matrices adamw updates, too: patterns as in groups.match.",
               .examples = R"(["*embedding*|head.*"])",
               .default_text = "none"},
              adamw_match);
    declare_averages(keys, beta1, beta2, eps);
    declare_weight_decay(keys, weight_decay);
  }
  std::unique_ptr<train::OptimizerUpdate> make_update() const;
  bool operator==(const Muon&) const = default;
};

using Optimizer = std::variant<Sgd, Adam, AdamW, RAdam, RmsProp, Adagrad, Lion, Lamb, Muon>;

// True if an update needs whole parameters, so that it cannot be divided among ranks.
inline bool updates_whole_parameters(const Optimizer& optimizer) {
  return std::visit(
      []<typename Settings>(const Settings&) {
        if constexpr (requires { Settings::kWholeParameters; }) return Settings::kWholeParameters;
        return false;
      },
      optimizer);
}

}  // namespace dtrain
