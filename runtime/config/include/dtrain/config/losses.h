// The losses of `model:` experiments: the list. Each is a struct with the word by which an experiment names it, and the
// function that computes it, which runtime/train/worker/losses/NAME.cpp defines. Losses have no settings: `loss` is a
// word. To add one: a struct here, its file there, and docs/experiment.md.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "dtrain/base/choices.h"

namespace dtrain::worker {
struct LossInput;   // runtime/train/worker/loss.h
struct LossValues;  // as above
}  // namespace dtrain::worker

namespace dtrain::config {

// Of classes, from logits.
struct CrossEntropy {
  static constexpr const char* kWord = "cross_entropy";
  static constexpr bool kTakesSequences = true;  // whether a sample may have a target at each of its positions
  // evaluate() of each struct: Error if output and target do not fit together; it names both shapes.
  worker::LossValues evaluate(const worker::LossInput& input) const;
  void check_target(const worker::LossInput& input) const;
  bool operator==(const CrossEntropy&) const = default;
};

struct MeanSquaredError {
  static constexpr const char* kWord = "mse";
  static constexpr bool kTakesSequences = false;
  worker::LossValues evaluate(const worker::LossInput& input) const;
  void check_target(const worker::LossInput& input) const;
  bool operator==(const MeanSquaredError&) const = default;
};

using Loss = std::variant<CrossEntropy, MeanSquaredError>;

inline bool takes_sequences(const Loss& loss) {
  return std::visit([](const auto& held) { return held.kTakesSequences; }, loss);
}

// The words of the losses that take sequences.
inline std::vector<std::string> losses_of_sequences() {
  std::vector<std::string> words;
  for (const std::string& word : dtrain::words_of<Loss>()) {
    if (takes_sequences(choice_named<Loss>(word))) words.push_back(word);
  }
  return words;
}

}  // namespace dtrain::config
