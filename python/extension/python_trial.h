// A trial in Python: the engine's calls of a Trial become calls of a Python object's methods.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <pybind11/pybind11.h>

#include "dtrain/train/trial.h"
#include "values.h"

namespace dtrain::python {

// The batches of a Python object with these methods (dtrain/division.py):
// epoch(number: int, skip: int) -> iterator     length() -> int | None     samples() -> int | None and, for the last
// returned batch, `count` (Batch::samples) and `global_samples`.
class PythonSource final : public BatchSource {
 public:
  explicit PythonSource(pybind11::object source);
  ~PythonSource() override;
  void start_epoch(std::int64_t epoch) override { start_epoch_at(epoch, 0); }
  void start_epoch_at(std::int64_t epoch, std::int64_t batches) override;
  std::optional<Batch> next() override;
  std::optional<std::int64_t> batches_per_epoch() const override { return number("length"); }
  std::optional<std::int64_t> samples_per_epoch() const override { return number("samples"); }

  // The structure of the last batch.
  const PythonBatch& structure() const { return *structure_; }

 private:
  std::optional<std::int64_t> number(const char* method) const;

  pybind11::object source_;
  pybind11::object batches_;  // the iterator of the epoch
  std::shared_ptr<PythonBatch> structure_;
};

// A Python object with the methods of dtrain.Callback.
class PythonCallback final : public Callback {
 public:
  explicit PythonCallback(pybind11::object callback);
  ~PythonCallback() override;
  std::string name() const override { return name_; }
  void receive(const Event& event) override;
  TrialState save_state() override;
  void load_state(const TrialState& state) override;

 private:
  pybind11::object callback_;
  std::string name_;
};

class PythonTrial final : public Trial {
 public:
  // `make` is called with the context and returns the trial (dtrain/trial.py).
  PythonTrial(const pybind11::object& make, TrialContext& context);
  ~PythonTrial() override;
  Loader training_loader() override;
  Loader validation_loader() override;
  Metrics train_batch(const Batch& batch) override;
  std::string why_not_repeatable() const override {
    return "the trial is written in Python, where a step may differ from the last one";
  }
  Metrics evaluate_batch(const Batch& batch) override;
  std::vector<std::filesystem::path> save_more(const std::filesystem::path& folder) override;
  TrialState save_state() override;
  void load_state(const TrialState& state) override;
  std::string state_owner() const override { return "the trial " + name_ + " in Python"; }

 private:
  std::shared_ptr<PythonSource> source(const char* method);

  pybind11::object trial_;
  std::string name_;  // name of its class
  std::shared_ptr<PythonSource> training_;
  std::shared_ptr<PythonSource> validation_;  // null: nothing is validated
};

}  // namespace dtrain::python
