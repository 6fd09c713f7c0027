// Keeps track of the models that the next optimizer step updates, where the trial has several (a generator and a
// discriminator). Training thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "state_visitor.h"

namespace dtrain::train {

class StepModels {
 public:
  // No names: the trial has one model, which every step updates.
  explicit StepModels(std::vector<std::string> names) : names_(std::move(names)), waiting_(names_.size(), 0) {}

  bool several() const { return !names_.empty(); }
  const std::vector<std::string>& names() const { return names_; }

  // backward() is called for these models (none: for all). The next step updates them. Error for an unknown name.
  void add(std::span<const std::string> models) {
    has_batch_ = true;
    if (models.empty()) std::fill(waiting_.begin(), waiting_.end(), 1);
    for (const std::string& model : models) waiting_[index_of(model)] = 1;
  }
  // For each model: 1 if backward() has been called for it since its last step.
  std::span<const std::uint8_t> waiting() const { return waiting_; }
  bool any_waiting() const { return std::find(waiting_.begin(), waiting_.end(), 1) != waiting_.end(); }
  void stepped() { std::fill(waiting_.begin(), waiting_.end(), 0); }

  // True if backward() has been called in this batch.
  bool has_batch() const { return has_batch_; }
  void begin_batch() { has_batch_ = false; }

  // Returns the names for a message: "'generator', 'discriminator'".
  std::string text(std::span<const std::uint8_t> models) const {
    std::string text;
    for (std::size_t i = 0; i < models.size(); ++i) {
      if (models[i]) text += (text.empty() ? "'" : ", '") + names_[i] + "'";
    }
    return text;
  }

  void visit(StateVisitor& visitor) {
    for (std::size_t i = 0; i < names_.size(); ++i) visitor.number(names_[i], waiting_[i]);
  }

 private:
  std::size_t index_of(const std::string& model) const {
    const auto found = std::find(names_.begin(), names_.end(), model);
    if (found != names_.end()) return static_cast<std::size_t>(found - names_.begin());
    throw Error("context.backward() was called for the model '" + model + "', which the trial has not wrapped",
                names_.empty() ? "the trial has one model, without a name" : "its models are " + join(names_, ", "));
  }

  const std::vector<std::string> names_;
  std::vector<std::uint8_t> waiting_;
  bool has_batch_ = false;
};

}  // namespace dtrain::train
