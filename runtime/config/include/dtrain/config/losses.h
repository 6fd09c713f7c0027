// The losses of `model:` experiments: the list. Each is a struct with the word by which an experiment names it, its
// settings with their keys, and the function that computes it, which runtime/train/worker/losses/NAME.cpp defines.
// Names, meanings and defaults are those of torch.nn.functional; every loss is the mean. To add one: a struct here, its
// file there, and docs/experiment.md. dtrain/config/model_job.h declares what the templates need.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/base/choices.h"

namespace dtrain::worker {
struct LossInput;      // runtime/train/worker/loss.h
struct LossValues;     // as above
struct ScoredTargets;  // as above
}  // namespace dtrain::worker

namespace dtrain::config {

// The output's dimension that counts the classes. Automatic: the last one with data.format tokens, else the second.
enum class ClassDimension { kAutomatic, kSecond, kLast };
inline constexpr std::array kClassDimensions{std::pair{"auto", ClassDimension::kAutomatic},
                                             std::pair{"second", ClassDimension::kSecond},
                                             std::pair{"last", ClassDimension::kLast}};

// The loss of classes, from logits.
struct CrossEntropy {
  static constexpr const char* kWord = "cross_entropy";
  static constexpr bool kTakesSequences = true;  // whether a sample may have a target at each of its positions
  double label_smoothing = 0;
  std::optional<std::int64_t> ignore_index;  // targets of this value do not count
  std::vector<double> class_weights;         // one for each class; empty: 1
  ClassDimension class_dimension = ClassDimension::kAutomatic;
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.number({"label_smoothing", "cross_entropy: the part of each target that is divided evenly among all classes."},
                label_smoothing, {.min = 0, .max = 1, .real = true});
    keys.integer({.name = "ignore_index",
                  .text = "cross_entropy: targets of this value do not count; the loss is the mean over the others of "
                          "all ranks. null: every target counts.",
                  .examples = "[-100]"},
                 ignore_index, {std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()});
    declare_numbers(keys,
                    {.name = "class_weights",
                     .text = "cross_entropy: how much a target counts, by its class: one number for each class. "
                             "Default: all count the same.",
                     .examples = "[[1, 2.5]]",
                     .default_text = "all the same"},
                    class_weights);
    keys.choice({"class_dimension",
                 "cross_entropy: the dimension of the output that counts the classes. second: [N, C] or [N, C, ...] "
                 "for targets [N] or [N, ...], as torch has it; last: [N, ..., C]; auto: last with data.format tokens, "
                 "otherwise second."},
                class_dimension, kClassDimensions);
  }
  // True if batches have weights: the number of their targets that count, or the sum of these targets' class weights.
  bool weighs_batches() const { return ignore_index || !class_weights.empty(); }
  // evaluate() of each struct: Error if output and target do not fit together; it names both shapes.
  worker::LossValues evaluate(const worker::LossInput& input) const;
  void check_target(const worker::LossInput& input) const;
  // Returns the scores and targets of the input that evaluate() has taken, for metrics.
  worker::ScoredTargets scored(const worker::LossInput& input) const;
  bool operator==(const CrossEntropy&) const = default;
};

// The loss of labels that are each 0 or 1, from logits: several may be 1.
struct BinaryCrossEntropy {
  static constexpr const char* kWord = "bce_with_logits";
  static constexpr bool kTakesSequences = false;
  template <class Keys>
  void declare_keys(Keys&) {}
  worker::LossValues evaluate(const worker::LossInput& input) const;
  void check_target(const worker::LossInput& input) const;
  worker::ScoredTargets scored(const worker::LossInput& input) const;
  bool operator==(const BinaryCrossEntropy&) const = default;
};

// The loss from the logarithms of probabilities; the mean over the samples ("batchmean" in torch).
struct KlDivergence {
  static constexpr const char* kWord = "kl_div";
  static constexpr bool kTakesSequences = false;
  bool log_target = false;  // the target is logarithms, too
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.boolean({"log_target", "kl_div: the targets are logarithms of probabilities, as the output is."}, log_target);
  }
  worker::LossValues evaluate(const worker::LossInput& input) const;
  void check_target(const worker::LossInput& input) const;
  bool operator==(const KlDivergence&) const = default;
};

struct MeanAbsoluteDifference {
  static constexpr const char* kWord = "l1";
  static constexpr bool kTakesSequences = false;
  template <class Keys>
  void declare_keys(Keys&) {}
  worker::LossValues evaluate(const worker::LossInput& input) const;
  void check_target(const worker::LossInput& input) const;
  bool operator==(const MeanAbsoluteDifference&) const = default;
};

struct MeanSquaredError {
  static constexpr const char* kWord = "mse";
  static constexpr bool kTakesSequences = false;
  template <class Keys>
  void declare_keys(Keys&) {}
  worker::LossValues evaluate(const worker::LossInput& input) const;
  void check_target(const worker::LossInput& input) const;
  bool operator==(const MeanSquaredError&) const = default;
};

// Squared below `beta`, absolute above.
struct SmoothL1 {
  static constexpr const char* kWord = "smooth_l1";
  static constexpr bool kTakesSequences = false;
  double beta = 1;
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.number({"beta", "smooth_l1: differences below this are squared, larger ones are not."}, beta,
                {.min = 0, .max = 1'000'000, .above_min = true, .real = true});
  }
  worker::LossValues evaluate(const worker::LossInput& input) const;
  void check_target(const worker::LossInput& input) const;
  bool operator==(const SmoothL1&) const = default;
};

// Connectionist temporal classification, from the logarithms of the classes' probabilities at each time step. Each
// sample's loss is divided by the length of its target.
struct Ctc {
  static constexpr const char* kWord = "ctc";
  static constexpr bool kTakesSequences = false;
  std::string input_lengths = "input_lengths";    // the name of a tensor of the data
  std::string target_lengths = "target_lengths";  // as above
  std::int64_t blank = 0;
  bool batch_first = false;
  bool zero_infinity = false;
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.text({.name = "input_lengths",
               .text = "ctc: the name of a tensor of the data, with the number of time steps of each sample: whole "
                       "numbers [N]. forward() gets it only if data.more_inputs names it, too.",
               .examples = R"(["input_lengths"])"},
              input_lengths);
    keys.text({.name = "target_lengths",
               .text = "ctc: the same for the number of labels of each target.",
               .examples = R"(["target_lengths"])"},
              target_lengths);
    keys.integer({"blank", "ctc: the class that stands for no label."}, blank,
                 {0, std::numeric_limits<std::int32_t>::max()});
    keys.boolean({"batch_first",
                  "ctc: the output is [N, T, C] (samples, time steps, classes). false: [T, N, C], as torch has it."},
                 batch_first);
    keys.boolean({"zero_infinity",
                  "ctc: a sample whose target does not fit into its time steps has the loss 0 and no gradient. false: "
                  "its loss is infinite."},
                 zero_infinity);
  }
  // Names of tensors of the data beside features and target, in the order of LossInput::more.
  std::vector<std::string> tensors() const { return {input_lengths, target_lengths}; }
  worker::LossValues evaluate(const worker::LossInput& input) const;
  void check_target(const worker::LossInput& input) const;
  bool operator==(const Ctc&) const = default;
};

// The model computes its loss: forward() gets the features and the target.
struct FromModel {
  static constexpr const char* kWord = "from_model";
  static constexpr bool kTakesSequences = true;
  template <class Keys>
  void declare_keys(Keys&) {}
  worker::LossValues evaluate(const worker::LossInput& input) const;
  void check_target(const worker::LossInput& input) const;
  bool operator==(const FromModel&) const = default;
};

using Loss = std::variant<CrossEntropy, BinaryCrossEntropy, KlDivergence, MeanAbsoluteDifference, MeanSquaredError,
                          SmoothL1, Ctc, FromModel>;

inline bool takes_sequences(const Loss& loss) {
  return std::visit([](const auto& held) { return held.kTakesSequences; }, loss);
}

// True if context.backward() needs a weight for each batch.
template <class... Losses>
bool weighs_batches(const std::variant<Losses...>& loss) {
  return std::visit(
      [](const auto& held) {
        if constexpr (requires { held.weighs_batches(); }) return held.weighs_batches();
        return false;
      },
      loss);
}

// Returns the names of tensors of the data that the loss gets besides the target.
template <class... Losses>
std::vector<std::string> tensors_of(const std::variant<Losses...>& loss) {
  return std::visit(
      [](const auto& held) -> std::vector<std::string> {
        if constexpr (requires { held.tensors(); }) return held.tensors();
        return {};
      },
      loss);
}

inline std::vector<std::string> losses_of_sequences() {
  std::vector<std::string> words;
  for (const std::string& word : dtrain::words_of<Loss>()) {
    if (takes_sequences(choice_named<Loss>(word))) words.push_back(word);
  }
  return words;
}

}  // namespace dtrain::config
