#include "recomputation/saved_tensors.h"

#include <typeinfo>
#include <utility>

#include <torch/csrc/autograd/engine.h>

#include "dtrain/base/error.h"

namespace dtrain::train {

namespace {

thread_local SavedTensorKeeper* current_keeper = nullptr;

class KeepingEngine final : public torch::autograd::Engine {
 public:
  static torch::autograd::Engine& get() {
    static KeepingEngine the;
    return the;
  }
  ~KeepingEngine() override { stop(); }
  KeepingEngine(const KeepingEngine&) = delete;
  KeepingEngine& operator=(const KeepingEngine&) = delete;

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return current_keeper == nullptr ? nullptr : current_keeper->hooks();
  }

 private:
  KeepingEngine() = default;
};

// Replaces the engine before the first backward of the process, which starts the engine's threads for devices. In
// Python the engine of Python stays: nodes carry objects of that engine, which torch.compile() and anomaly mode read.
bool put_in_place() {
  const torch::autograd::Engine& engine = torch::autograd::Engine::get_default_engine();
  if (typeid(engine) != typeid(torch::autograd::Engine)) return false;
  torch::autograd::set_default_engine_stub(&KeepingEngine::get);
  return true;
}
[[maybe_unused]] const bool is_in_place = put_in_place();

}  // namespace

KeepSavedTensors::KeepSavedTensors(SavedTensorKeeper& keeper) : before_(current_keeper) {
  if (&torch::autograd::Engine::get_default_engine() != &KeepingEngine::get()) {
    throw Error("dtrain::checkpoint() needs dtrain's engine of autograd, and another one is in its place",
                "do not load Python's libraries of PyTorch into the program");
  }
  current_keeper = &keeper;
}

KeepSavedTensors::~KeepSavedTensors() {
  current_keeper = before_;
}

}  // namespace dtrain::train
